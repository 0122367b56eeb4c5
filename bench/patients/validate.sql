-- One row per facility with what was stored for it; an error unless it is all.
INSERT INTO pft_test_validation_log
SELECT $execution, f.facility_mapping_id,
       (SELECT count(DISTINCT pcc_patient_id) FROM pft_test_patient_assessments d WHERE d.facility_mapping_id = f.facility_mapping_id),
       (SELECT count(DISTINCT pcc_patient_id) FROM pft_test_patient_conditions d WHERE d.facility_mapping_id = f.facility_mapping_id),
       (SELECT count(DISTINCT pcc_patient_id) FROM pft_test_patient_medications d WHERE d.facility_mapping_id = f.facility_mapping_id),
       (SELECT count(DISTINCT pcc_patient_id) FROM pft_test_patient_vital_signs d WHERE d.facility_mapping_id = f.facility_mapping_id),
       (SELECT count(DISTINCT pcc_patient_id) FROM pft_test_patient_demographics d WHERE d.facility_mapping_id = f.facility_mapping_id),
       (SELECT count(*) FROM pft_test_patient_work_queue q
        WHERE q.execution_id = $execution AND q.facility_mapping_id = f.facility_mapping_id AND q.status = 'done'),
       (SELECT count(*) FROM pft_test_mds_assessment_ids_work m WHERE m.facility_mapping_id = f.facility_mapping_id),
       (SELECT count(*) FROM pft_test_mds_assessment_details m WHERE m.facility_mapping_id = f.facility_mapping_id),
       $patients
FROM pft_test_facilities f;
SELECT set_config('noetl.execution', $execution, true);
DO $$
DECLARE short record;
BEGIN
    SELECT * INTO short FROM pft_test_validation_log
    WHERE execution_id = current_setting('noetl.execution')::bigint
      AND (least(assessments, conditions, medications, vital_signs, demographics) <> total_expected
           OR queue_done <> 5 * total_expected OR mds_done <> mds_expected);
    IF FOUND THEN RAISE EXCEPTION 'facility % is short: %', short.facility_mapping_id, row_to_json(short); END IF;
END $$;
SELECT * FROM pft_test_validation_log WHERE execution_id = $execution ORDER BY facility_mapping_id;
