"""`noetl.tool`: what authors of tools import."""

import asyncio
from pathlib import Path

import noetl.tool
from noetl.tool import Call, CallIdentity, Success, Tool

ROOT = Path(__file__).parents[3]


def read_example() -> str:
    return (ROOT / "docs" / "tools.md").read_text().partition("```python\n")[2].partition("```")[0]


def test_example_of_the_documentation_is_a_tool(tmp_path: Path) -> None:
    names: dict[str, type] = {}
    exec(compile(read_example(), "tools.md", "exec"), names)
    tool: Tool = names["CountLines"]()
    file = tmp_path / "lines"
    file.write_text("a\nb\n")
    identity = CallIdentity("1", "step", "task")
    call = Call({"path": str(file)}, {}, "key", identity)
    assert asyncio.run(tool.run(call)) == Success({"lines": 2})
    missing = Call({"path": str(tmp_path / "none")}, {}, "key", identity)
    outcome = asyncio.run(tool.run(missing))
    assert outcome.failure.code == "FILE_UNREADABLE"


def test_example_package_imports_the_public_module_only() -> None:
    source = (ROOT / "examples" / "outside_tool" / "noetl_checksum" / "__init__.py").read_text()
    imports = [
        line for line in source.splitlines() if line.startswith(("from noetl", "import noetl"))
    ]
    assert [line.split()[1] for line in imports] == ["noetl.tool"]


def test_every_name_is_exported() -> None:
    assert all(hasattr(noetl.tool, name) for name in noetl.tool.__all__)
