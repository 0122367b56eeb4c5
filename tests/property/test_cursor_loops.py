"""Cursor loops: one result per claimed row, in the order of the claims, for all sizes of claims and orders of ends."""

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from noetl.model import decisions as d
from noetl.model import events as e
from noetl.model import messages as m
from noetl.model.commands import Command
from noetl.model.envelope import Envelope
from noetl.model.ids import RefId
from noetl.model.reference import Reference
from tests.examples import count_examples
from tests.play import EXECUTION, Play, workflow

CURSOR = """
- step: each
  loop:
    iterator: row
    cursor: {{kind: postgres, claim: "select 1"}}
    spec: {{mode: cursor, max_in_flight: {lanes}, frame: {{size: {size}}}, reduce: {{ctx.rows: append}}}}
  tool: {{kind: python, code: x, set: {{ctx.rows: "{{{{ row }}}}"}}}}
"""


@dataclass
class Claims:
    """Workers of a cursor loop: what they claimed, in order, and the rows that they have stored."""

    play: Play
    sizes: list[int]
    claimed: list[str] = field(default_factory=list)
    stored: dict[str, list[tuple[int, str]]] = field(default_factory=dict)
    indexes: list[int] = field(default_factory=list)
    frames: dict[str, list[str]] = field(default_factory=dict)

    def claim(self, command: Command) -> None:
        """Every row of a claim has a name of its own; without one the loop is drained."""
        size = self.sizes.pop() if self.sizes else 0
        rows = [f"row {len(self.claimed) + number}" for number in range(size)]
        if not rows:
            self.end(command, e.Items(claimed=0), None)
            return
        self.claimed += rows
        self.frames[command.command_id] = rows
        self.indexes += [command.first + number for number in range(size)]
        self.play.report(
            command,
            e.FrameClaimed(
                command_id=command.command_id, attempt=command.attempt, size=size, reference=None
            ),
        )

    def progress(self, command: Command, done: int) -> None:
        event = e.CommandProgress(
            command_id=command.command_id,
            attempt=command.attempt,
            done=command.first + done,
            items=self.items(command, 0, done),
            result=self.put(command, 0, done),
        )
        self.play.report(command, event)

    def finish(self, command: Command, done: int) -> None:
        rows = self.frames.pop(command.command_id)
        items = replace(self.items(command, done, len(rows), rows), claimed=len(rows))
        self.end(command, items, self.put(command, done, len(rows), rows))

    def items(
        self, command: Command, low: int, high: int, rows: list[str] | None = None
    ) -> e.Items:
        rows = rows or self.frames[command.command_id]
        return e.Items(
            first=command.first + low, ok=high - low, partial={"ctx.rows": rows[low:high]}
        )

    def put(self, command: Command, low: int, high: int, rows: list[str] | None = None) -> Envelope:
        rows = rows or self.frames[command.command_id]
        ref_id = f"{command.command_id}-{low}"
        self.stored[ref_id] = [
            (command.first + number, rows[number]) for number in range(low, high)
        ]
        uri = f"noetl://execution/{EXECUTION}/result/each/{ref_id}"
        return Envelope(
            status="ok",
            reference=Reference(ref_id=RefId(ref_id), type="memory", uri=uri, rows=high - low),
        )

    def end(self, command: Command, items: e.Items, result: Envelope | None) -> None:
        event = e.CommandCompleted(
            command_id=command.command_id,
            attempt=command.attempt,
            items=items,
            result=result or Envelope(status="ok"),
        )
        self.play.report(command, event)

    def results(self) -> dict[int, list[str]]:
        """By index, as readers of the manifest see it."""
        found: dict[int, list[str]] = {}
        for part in self.play.effects:
            if isinstance(part, d.AddPart):
                for index, row in self.stored[part.reference.ref_id]:
                    assert part.first <= index + part.shift < part.first + part.count
                    found.setdefault(index + part.shift, []).append(row)
        return found


@settings(deadline=None, max_examples=count_examples(80))
@given(st.data())
def test_every_claimed_row_has_one_result_in_claim_order(data: st.DataObject) -> None:
    size, lanes = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 4))
    sizes = data.draw(st.lists(st.integers(1, 2 * size + 1), max_size=8))
    play = Play(workflow(CURSOR.format(size=size, lanes=lanes))).start()
    claims = Claims(play, sizes)
    while ready := play.list_ready():
        command = data.draw(st.sampled_from(ready))
        rows = claims.frames.get(command.command_id)
        done = play.state.commands[command.command_id].journal.done - command.first
        if rows is None:
            claims.claim(command)
        elif done <= 0 and len(rows) > 1 and data.draw(st.booleans()):
            claims.progress(command, data.draw(st.integers(1, len(rows) - 1)))
        elif (
            data.draw(st.integers(0, 4)) == 0
        ):  # its worker is lost: another attempt works on the same rows
            lost = m.LeaseLost(command_id=command.command_id, attempt=command.attempt, worker="w1")
            play.tell(lost)
            if command.command_id not in play.state.commands:
                return
        else:
            claims.finish(command, max(done, 0))
    done_event = play.check().find_last(e.LoopDone)
    assert (done_event.stats.total, done_event.stats.ok) == (
        len(claims.claimed),
        len(claims.claimed),
    )
    assert claims.results() == {index: [row] for index, row in enumerate(claims.claimed)}
    assert play.state.ctx.get("rows", []) == claims.claimed
    assert len(set(claims.indexes)) == len(claims.indexes)
