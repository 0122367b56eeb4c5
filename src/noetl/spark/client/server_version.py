"""Asks a Spark Connect server of others for its version."""

from contextlib import suppress

import grpc  # type: ignore[import-untyped]  # it has no types
from pyspark.errors import PySparkException
from pyspark.sql.connect.client.core import DefaultChannelBuilder
from pyspark.sql.connect.proto import base_pb2, base_pb2_grpc

from noetl.model.errors import InvalidInput
from noetl.spark.client.process import USER
from noetl.spark.profiles import SparkUnavailable

VERSION_TIMEOUT_S = 5.0  # seconds for the answer
RELEASE_TIMEOUT_S = 1.0  # seconds to release the session


def read_server_version(url: str, session: str) -> str:
    """The version of Spark at the URL, asked in a session of this id.

    This asks once. PySpark's own client would retry for minutes.
    """
    builder = _make_channel_builder(url)
    user = base_pb2.UserContext(user_id=USER)
    question = base_pb2.AnalyzePlanRequest(session_id=session, user_context=user)
    question.spark_version.SetInParent()
    release = base_pb2.ReleaseSessionRequest(session_id=session, user_context=user)
    with builder.toChannel() as channel:
        server = base_pb2_grpc.SparkConnectServiceStub(channel)  # type: ignore[no-untyped-call]  # generated
        try:
            answer = server.AnalyzePlan(
                question, timeout=VERSION_TIMEOUT_S, metadata=builder.metadata()
            )
        except grpc.RpcError as error:
            raise SparkUnavailable(_describe_rpc_error(error)) from error
        with suppress(grpc.RpcError):  # the version is known already
            server.ReleaseSession(release, timeout=RELEASE_TIMEOUT_S, metadata=builder.metadata())
    return str(answer.spark_version.version)


def _make_channel_builder(url: str) -> DefaultChannelBuilder:
    try:
        return DefaultChannelBuilder(url)
    except (PySparkException, ValueError):  # not chained: their text may contain the token
        raise InvalidInput(
            "not an address; sc://host:port/;token=…, each value quoted as in a URL"
        ) from None


def _describe_rpc_error(error: grpc.RpcError) -> str:
    if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
        return f"no answer within {VERSION_TIMEOUT_S:g} s"
    first_line = str(error.details()).partition("\n")[0]
    return f"it does not answer: {error.code().name}: {first_line}"
