"""Older spellings of a loop: `mode` beside `in`, v1 element names, `async`."""

from noetl.playbook.dialect.editor import Editor, Node
from noetl.playbook.dialect.tasks import rename_older_key

_LOOP = {"collection": "in", "element": "iterator"}
_SPEC = ("mode", "max_in_flight", "chunk", "frame", "reduce", "policy")
_CONCURRENCY = ("concurrency", "max_concurrency", "max_concurrent")
_FRAME = {
    "max_rows": "size",
    "rows": "size",
    "lease_seconds": "lease",
    "lease_sec": "lease",
    "heartbeat_seconds": "heartbeat",
    "heartbeat_sec": "heartbeat",
}
_MODES = {"async": "parallel", "serial": "sequential"}


def rewrite(loop: Node, editor: Editor) -> None:
    for old, new in _LOOP.items():
        rename_older_key(loop, old, new, editor)
    for holder in (loop, loop.get("spec")):
        if isinstance(holder, dict):
            for old in _CONCURRENCY:
                rename_older_key(holder, old, "max_in_flight", editor)
    for name in _SPEC:
        if name in loop:
            editor.add_note(loop, name, f"`loop.{name}` is now `loop.spec.{name}`")
            editor.move(loop, name, editor.ensure_map(loop, "spec", origin=name))
    spec = loop.get("spec")
    if not isinstance(spec, dict):
        return
    if isinstance(spec.get("frame"), dict):
        for old, new in _FRAME.items():
            rename_older_key(spec["frame"], old, new, editor)
    mode = spec.get("mode")
    if isinstance(mode, str) and mode in _MODES:
        new_mode = _MODES[mode]
        editor.add_note(spec, "mode", f"the mode `{mode}` is now `{new_mode}`")
        editor.put(spec, "mode", new_mode, spec, "mode")
