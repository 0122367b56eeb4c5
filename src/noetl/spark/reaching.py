"""Whether a Spark Connect server that others look after answers."""

from contextlib import suppress

import grpc  # type: ignore[import-untyped]  # it has no types
from pyspark.errors import PySparkException
from pyspark.sql.connect.client.core import DefaultChannelBuilder
from pyspark.sql.connect.proto import base_pb2, base_pb2_grpc

from noetl.model.errors import InvalidInput
from noetl.spark.child import USER
from noetl.spark.profiles import SparkUnavailable

WITHIN = 5.0  # seconds
AFTERWARDS = 1.0


def version_at(url: str, session: str) -> str:
    """The version of Spark there, by a session of that id. Asked once: PySpark's own client would go on asking for minutes."""
    builder = _builder(url)
    user = base_pb2.UserContext(user_id=USER)
    asked = base_pb2.AnalyzePlanRequest(session_id=session, user_context=user)
    asked.spark_version.SetInParent()
    over = base_pb2.ReleaseSessionRequest(session_id=session, user_context=user)
    with builder.toChannel() as channel:
        server = base_pb2_grpc.SparkConnectServiceStub(channel)  # type: ignore[no-untyped-call]  # generated
        try:
            told = server.AnalyzePlan(asked, timeout=WITHIN, metadata=builder.metadata())
        except grpc.RpcError as error:
            raise SparkUnavailable(_why(error)) from error
        with suppress(grpc.RpcError):  # it answered
            server.ReleaseSession(over, timeout=AFTERWARDS, metadata=builder.metadata())
    return str(told.spark_version.version)


def _builder(url: str) -> DefaultChannelBuilder:
    try:
        return DefaultChannelBuilder(url)
    except (PySparkException, ValueError):  # what they say may have the token in it
        raise InvalidInput(
            "not an address; sc://host:port/;token=…, each value quoted as in a URL"
        ) from None


def _why(error: grpc.RpcError) -> str:
    if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
        return f"no answer within {WITHIN:g} s"
    return f"it does not answer: {error.code().name}: {str(error.details()).partition(chr(10))[0]}"
