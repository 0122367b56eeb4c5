"""The details of an execution, as the HTTP API and the command show them."""

import msgspec

from noetl.log.projections.port import Projection
from noetl.model.ids import ExecutionId, Tenant
from noetl.server.executions.details import make_children_view, make_detailed_view

ROW = Projection(
    execution_id=ExecutionId("77"),
    shard=0,
    tenant=Tenant(1),
    path="tests/simple",
    status="pending",
    last_seq=0,
    started_at=0,
    updated_at=0,
)


def test_an_execution_without_a_state_is_shown_without_steps() -> None:
    view = make_detailed_view(ROW, None, {"n": 3}, make_children_view({}, []), None)
    assert msgspec.to_builtins(view) == {
        "execution_id": "77",
        "path": "tests/simple",
        "status": "pending",
        "started_at": None,
        "updated_at": None,
        "ended_at": None,
        "parent": None,
        "retry_of": None,
        "error": None,
        "step_count": 0,
        "recovered": 0,
        "last_seq": 0,
        "by": None,
        "version": None,
        "from_step": None,
        "playbook": None,
        "failure": None,
        "cause": None,
        "steps": {},
        "workload": {"n": 3},
        "children": {"total": 0, "counts": {}, "newest": []},
        "recoveries": [],
        "state": {},
    }
