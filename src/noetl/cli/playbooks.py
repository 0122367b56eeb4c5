"""Commands on playbook files that need no server: validate, schema, convert, graph."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from noetl.cli.arguments import find_playbook_files
from noetl.cli.language import CheckedPlaybook
from noetl.cli.output import dim_text, format_count, say
from noetl.cli.terminal import paint_text, write_document
from noetl.playbook import graph as graphs
from noetl.playbook.findings import Finding
from noetl.playbook.schema import build_schema
from noetl.playbook.validation import LoadedPlaybook, PlaybookInvalid
from noetl.runtime.kinds import check_playbook

EXIT_UNREADABLE = 2  # exit code
_COLOURS = {"error": "1;31", "warning": "1;33", "note": "1;36"}  # ANSI codes by severity

Files = Annotated[
    list[Path],
    typer.Argument(metavar="FILE|DIR…", help="playbooks, or folders searched for *.yaml"),
]
File = Annotated[Path, typer.Argument(metavar="FILE", help="a playbook")]


def register(app: typer.Typer) -> None:
    app.command()(validate)
    app.command()(schema)
    app.command()(convert)
    app.command()(graph)


def validate(
    paths: Files,
    as_json: Annotated[
        bool, typer.Option("--json", help="print one JSON array of findings")
    ] = False,
    strict: Annotated[bool, typer.Option("--strict", help="warnings count as errors")] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="print errors and warnings, no notes")
    ] = False,
    server: Annotated[
        str | None,
        typer.Option(
            "--server",
            metavar="URL",
            help="warn of children and credentials that this server does not have",
        ),
    ] = None,
) -> None:
    """Check playbooks without running them.

    Reports unknown keys, arcs to steps that do not exist, templates that do not parse or use unknown names, Python
    syntax errors and more, each as `file:line:column: severity CODE message` with a hint below. With --server also child
    playbooks that are neither registered there nor among the files, and credentials that are not stored there.

    Exit code: 0 good, 1 a playbook has errors (or warnings with --strict), 2 a file cannot be read.

    Example: noetl validate playbooks/ --strict
    """
    files, unreadable = _find_files(paths)
    findings: list[Finding] = []
    checked: list[CheckedPlaybook] = []
    for file in files:
        loaded = _load_file(file)
        if loaded is None:
            unreadable = True
            continue
        findings.extend(loaded.findings)
        if server is not None and loaded.playbook is not None:
            checked.append((str(file), _read_file(file), loaded.playbook))
    if server is not None:
        from noetl.cli.missing import ask_for_missing  # needs the client

        findings.extend(ask_for_missing(server, checked))
    printed = [finding for finding in findings if not (quiet and finding.severity == "note")]
    if as_json:
        rows = [finding.to_dict() for finding in printed]
        print(json.dumps(rows, indent=2, ensure_ascii=False))
    else:
        _print_findings(printed)
        _print_finding_counts(len(files), findings)
    if unreadable:
        raise typer.Exit(EXIT_UNREADABLE)
    failing = {"error", "warning"} if strict else {"error"}
    bad = any(finding.severity in failing for finding in findings)
    raise typer.Exit(int(bad))


def schema(
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="write to a file instead")
    ] = None,
) -> None:
    """Print the JSON Schema of the playbook language, for editors.

    In VS Code: "yaml.schemas": {"noetl-schema.json": "playbooks/*.yaml"}; or put this line on top of a playbook:
    # yaml-language-server: $schema=noetl-schema.json

    Example: noetl schema -o noetl-schema.json
    """
    text = json.dumps(build_schema(), indent=2, ensure_ascii=False) + "\n"
    if output is None:
        sys.stdout.write(text)
    else:
        output.write_text(text, encoding="utf-8")


def convert(
    path: File,
    write: Annotated[bool, typer.Option("--write", "-w", help="rewrite the file in place")] = False,
) -> None:
    """Rewrite a playbook in the current spelling. Comments and order stay.

    `case`, `vars`, `sink`, `retry`, `args`, v1 steps and the other older spellings are replaced. Without
    --write the result goes to standard output.

    Example: noetl convert old.yaml --write
    """
    # Other commands do not need the YAML library that keeps comments.
    from noetl.playbook.convert import convert as convert_text

    source = _read_file(path)
    try:
        converted = convert_text(source, file=str(path))
    except PlaybookInvalid as exc:
        _print_findings(exc.findings)
        raise typer.Exit(1) from exc
    if not write:
        write_document(converted.text)
        return
    if converted.changes:
        path.write_text(converted.text, encoding="utf-8")
    typer.echo(f"{path}: {len(converted.changes)} spelling(s) rewritten", err=True)


def graph(
    path: File,
    mermaid: Annotated[bool, typer.Option("--mermaid", help="print a Mermaid flowchart")] = False,
) -> None:
    """Draw the steps and arcs of a playbook as a tree, or as Mermaid for documents.

    Example: noetl graph invoices.yaml --mermaid > invoices.mmd
    """
    loaded = check_playbook(_read_file(path), str(path))
    if loaded.playbook is None:
        _print_findings(loaded.errors)
        raise typer.Exit(1)
    draw = graphs.draw_mermaid if mermaid else graphs.draw_tree
    write_document(draw(loaded.playbook))


# ---- files and output ----


def _find_files(paths: list[Path]) -> tuple[list[Path], bool]:
    """The playbooks at the paths, and whether one of the paths is missing."""
    files: list[Path] = []
    missing = False
    for path in paths:
        if path.exists():
            files.extend(find_playbook_files(path))
        else:
            typer.echo(f"{path}: no such file", err=True)
            missing = True
    return list(dict.fromkeys(files)), missing


def _load_file(file: Path) -> LoadedPlaybook | None:
    try:
        return check_playbook(file.read_bytes(), str(file))
    except OSError as exc:
        typer.echo(f"{file}: {exc.strerror or exc}", err=True)
        return None


def _read_file(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as exc:
        typer.echo(f"{path}: {exc.strerror or exc}", err=True)
    except UnicodeDecodeError:
        typer.echo(f"{path}: not UTF-8", err=True)
    raise typer.Exit(EXIT_UNREADABLE)


def _print_findings(findings: list[Finding]) -> None:
    for finding in findings:
        place = f"{finding.file}:{finding.line}:{finding.column}:"
        severity = paint_text(finding.severity, _COLOURS[finding.severity])
        line = f"{place} {severity} {paint_text(finding.code, 1)} {finding.message}"
        if finding.step:
            line += f" (step {finding.step})"
        say(line)
        if finding.hint:
            say(dim_text(f"    {finding.hint}"))


def _print_finding_counts(files: int, findings: list[Finding]) -> None:
    counts: list[str] = []
    for severity in _COLOURS:
        count = sum(finding.severity == severity for finding in findings)
        if count:
            counts.append(format_count(count, severity))
    typer.echo(f"{format_count(files, 'file')}: {', '.join(counts) or 'no findings'}", err=True)
