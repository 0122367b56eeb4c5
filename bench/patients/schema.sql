-- The tables of the patient flow, empty, and its facilities.
CREATE TABLE IF NOT EXISTS pft_test_facilities (
    facility_mapping_id int PRIMARY KEY, facility_name text, facility_id text, active boolean NOT NULL, updated_at timestamptz);
CREATE TABLE IF NOT EXISTS pft_test_patient_ids_work (
    patient_id int, facility_mapping_id int, facility_org_uuid text, PRIMARY KEY (patient_id, facility_mapping_id));
CREATE TABLE IF NOT EXISTS pft_test_patient_work_queue (
    execution_id bigint, facility_mapping_id int, data_type text, patient_id int, status text NOT NULL DEFAULT 'pending',
    attempt_count int NOT NULL DEFAULT 0, worker_id text, claimed_at timestamptz, done_at timestamptz, last_error text,
    PRIMARY KEY (execution_id, facility_mapping_id, data_type, patient_id));
CREATE INDEX IF NOT EXISTS pft_test_queue_pending ON pft_test_patient_work_queue (execution_id, facility_mapping_id, data_type)
    WHERE status = 'pending';
CREATE TABLE IF NOT EXISTS pft_test_work_batch_queue (
    execution_id bigint, data_type text, batch_id int, patient_ids int[] NOT NULL, status text NOT NULL DEFAULT 'pending',
    attempt_count int NOT NULL DEFAULT 0, worker_id text, claimed_at timestamptz, done_at timestamptz, last_error text,
    PRIMARY KEY (execution_id, data_type, batch_id));
CREATE TABLE IF NOT EXISTS pft_test_patient_assessments (
    pcc_patient_id int, facility_mapping_id int, page_number int, payload jsonb, is_last_page boolean,
    PRIMARY KEY (pcc_patient_id, facility_mapping_id, page_number));
CREATE TABLE IF NOT EXISTS pft_test_patient_conditions (LIKE pft_test_patient_assessments INCLUDING ALL);
CREATE TABLE IF NOT EXISTS pft_test_patient_medications (LIKE pft_test_patient_assessments INCLUDING ALL);
CREATE TABLE IF NOT EXISTS pft_test_patient_vital_signs (LIKE pft_test_patient_assessments INCLUDING ALL);
CREATE TABLE IF NOT EXISTS pft_test_patient_demographics (
    pcc_patient_id int, facility_mapping_id int, payload jsonb, fetched_at timestamptz DEFAULT now(),
    PRIMARY KEY (pcc_patient_id, facility_mapping_id));
CREATE TABLE IF NOT EXISTS pft_test_mds_assessment_ids_work (
    assessment_id text PRIMARY KEY, pcc_patient_id int, facility_mapping_id int, status text NOT NULL DEFAULT 'pending',
    claimed_at timestamptz);
CREATE INDEX IF NOT EXISTS pft_test_mds_pending ON pft_test_mds_assessment_ids_work (facility_mapping_id) WHERE status <> 'done';
CREATE TABLE IF NOT EXISTS pft_test_mds_assessment_details (
    assessment_id text PRIMARY KEY, pcc_patient_id int, facility_mapping_id int, payload jsonb);
CREATE TABLE IF NOT EXISTS pft_test_validation_log (
    execution_id bigint, facility_mapping_id int, assessments int, conditions int, medications int, vital_signs int,
    demographics int, queue_done int, mds_expected int, mds_done int, total_expected int,
    PRIMARY KEY (execution_id, facility_mapping_id));

TRUNCATE pft_test_facilities, pft_test_patient_ids_work, pft_test_patient_work_queue, pft_test_work_batch_queue,
    pft_test_patient_assessments, pft_test_patient_conditions, pft_test_patient_medications, pft_test_patient_vital_signs,
    pft_test_patient_demographics, pft_test_mds_assessment_ids_work, pft_test_mds_assessment_details, pft_test_validation_log;
INSERT INTO pft_test_facilities
SELECT number, 'Facility ' || number, 'org-' || number, true, now() FROM generate_series(1, $facilities) AS number;
