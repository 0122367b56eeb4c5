"""`noetl spark`: shows, starts, stops and checks the Spark server of this machine.

Steps start the server by themselves; users need these commands only to look at it or to stop it.
"""

import os
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated, Any
from uuid import uuid4

import typer

from noetl.cli.options import AsJson
from noetl.cli.output import add_colour, say, say_json
from noetl.model.errors import NoetlError
from noetl.runtime.spark_server import start_spark
from noetl.settings import HomeSettings, SparkSettings, read_settings
from noetl.spark.profiles import NONE, hide_token, parse_profile
from noetl.spark.server.java import NoJava, find_java
from noetl.spark.server.jvm import GB, measure_machine
from noetl.spark.server.process import ARCHIVE_TIMEOUT_S, SparkServerSettings, run_spark_server
from noetl.spark.server.server_start import (
    find_answering_server,
    stop_spark_server,
    wait_for_process_end,
)
from noetl.spark.server.server_state import ServerRecord, SparkServerState

STOP_NOTICE_DELAY_S = 2.0  # seconds before `noetl spark stop` says what it waits for


def register(app: typer.Typer) -> None:
    group = typer.Typer(
        name="spark",
        help="The Spark server of this machine.",
        no_args_is_help=True,
        rich_markup_mode=None,
    )
    for command in (status, start, stop, doctor, serve):
        group.command()(command)
    app.add_typer(group)


def status(as_json: AsJson = False) -> None:
    """Show which profile is used, and whether and where the Spark server of this machine runs.

    Exit code: 0 it runs, 1 it does not. A step of kind spark starts it, unless NOETL_SPARK_PROFILE names another server:
    `noetl spark doctor` asks that one.
    """
    named, meaning, _ = _describe_profile()
    place = _find_spark_place()
    served = find_answering_server(place)
    row: dict[str, Any] = {
        "profile": named,
        "running": served is not None,
        "log": str(place.log),
    }
    if served is not None:
        row |= {
            "port": served.port,
            "pid": served.pid,
            "java": served.java,
            "cluster": served.cluster,
        }
    if as_json:
        say_json(row)
    else:
        say(f"profile {named}: {meaning}")
        say(_describe_server(served))
    raise typer.Exit(int(served is None))


def _describe_server(served: ServerRecord | None) -> str:
    if served is None:
        return "no Spark server of this machine runs"
    details = f"Java {served.java}, process {served.pid}"
    if served.cluster is not None:
        details += f", executors on {served.cluster}"
    return f"Spark answers at 127.0.0.1:{served.port} ({details})"


def start() -> None:
    """Start the Spark server of this machine if it does not run, and wait until it answers.

    The profile of NOETL_SPARK_PROFILE says where its executors are. It stops by itself if it is not used for
    NOETL_SPARK_IDLE_SEC.
    """
    is_started = start_spark()
    if is_started:
        say("Spark answers")
    else:
        say("the profile names a server of its own; nothing to start")


def stop() -> None:
    """Stop the Spark server of this machine, and wait until its processes have ended.

    Steps that use it fail; when they are retried, they start another. The first server of a machine stores its loaded
    classes before it ends, so that the next ones start faster.
    """
    place = _find_spark_place()
    served = place.read_server()
    if not stop_spark_server(place):
        say("no Spark server runs")
        return
    if served is not None and not wait_for_process_end(served.pid, STOP_NOTICE_DELAY_S):
        notice = "the server has stopped; its process still stores classes for faster starts"
        print(notice, file=sys.stderr)
        wait_for_process_end(served.pid, ARCHIVE_TIMEOUT_S)
    say("stopped")


def doctor(as_json: AsJson = False) -> None:
    """Check what Spark needs on this machine (Java, PySpark, memory), and say what to do if something is missing.

    If NOETL_SPARK_PROFILE names another server (sc://…), check PySpark, and whether that server answers within 5 seconds.

    Exit code: 0 Spark can run, 1 it cannot.
    """
    named, _, url = _describe_profile()
    if url is None:
        findings = [_check_java(), _check_pyspark(), _check_machine()]
    else:
        findings = [_check_pyspark(), _check_spark_server(named, url)]
    if as_json:
        say_json(findings)
    else:
        for finding in findings:
            status = finding["status"]
            word = add_colour(status, f"{status:<5}")
            say(f"{word}  {finding['check']:<8}  {finding['message']}")
    raise typer.Exit(int(any(finding["status"] == "error" for finding in findings)))


def serve(
    master: Annotated[
        str | None,
        typer.Option("--master", help="spark://… where the executors are; default: this machine"),
    ] = None,
) -> None:
    """Run the Spark server of this machine until it is stopped or idle. `noetl spark start` runs this in the background."""
    spark = read_settings(SparkSettings)
    serving = SparkServerSettings(spark.idle_sec, spark.java_options)
    code = run_spark_server(read_settings(HomeSettings).home_path, serving, master)
    raise typer.Exit(code)


def _find_spark_place() -> SparkServerState:
    return SparkServerState.from_home(read_settings(HomeSettings).home_path)


def _describe_profile() -> tuple[str, str, str | None]:
    """The profile in force: its name without secrets, its meaning, and its URL if it has one."""
    text = read_settings(SparkSettings).profile
    if text == NONE:
        return text, "steps have no Spark", None
    profile_in_force = parse_profile(text)
    if profile_in_force.url is not None:
        return (
            hide_token(text),
            "a server of others; noetl spark doctor asks whether it answers",
            profile_in_force.url,
        )
    return hide_token(text), "a server of this machine, which the first spark step starts", None


def _check_spark_server(named: str, url: str) -> dict[str, str]:
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # the library reads it when it is loaded
    try:
        # PySpark takes seconds to load, and reads the variable above meanwhile.
        from noetl.spark.client.server_version import read_server_version

        return {
            "check": "server",
            "status": "ok",
            "message": f"{named} answers: Spark {read_server_version(url, str(uuid4()))}",
        }
    except ImportError:
        return {
            "check": "server",
            "status": "error",
            "message": f"{named} cannot be asked without PySpark",
        }
    except NoetlError as error:
        return {"check": "server", "status": "error", "message": f"{named}: {error}"}


def _check_java() -> dict[str, str]:
    try:
        java = find_java()
    except NoJava as error:
        return {"check": "java", "status": "error", "message": f"{error}; {error.hint}"}
    return {
        "check": "java",
        "status": "ok",
        "message": f"Java {java.version}, {java.program} (by {java.found_by})",
    }


def _check_pyspark() -> dict[str, str]:
    try:
        return {"check": "pyspark", "status": "ok", "message": f"PySpark {version('pyspark')}"}
    except PackageNotFoundError:
        return {
            "check": "pyspark",
            "status": "error",
            "message": "not installed; pip install 'pyspark[connect]'",
        }


def _check_machine() -> dict[str, str]:
    size = measure_machine()
    status = "ok" if size.memory >= 2 * GB else "warn"
    message = f"{size.cores} cores, {size.memory / GB:.1f} GB of memory, of which Spark takes up to {size.heap_bytes / GB:.1f}"
    return {"check": "machine", "status": status, "message": message}
