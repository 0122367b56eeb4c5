"""Every metric, named as in the specification. Each process makes one `Metrics` and passes it on."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

# Histogram buckets: milliseconds, bytes, counts.
LATENCY_BUCKETS_MS = (0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000)
SIZE_BUCKETS_BYTES = (64, 256, 512, 1_024, 2_048, 4_096, 8_192, 16_384)
COUNT_BUCKETS = (1, 2, 5, 10, 20, 50, 100, 200, 500)


class Metrics:
    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        registry = registry or CollectorRegistry()
        self.registry = registry
        # -- the log and its owner
        self.projection_lag_ms = Gauge(
            "noetl_projection_lag_ms",
            "Age of the oldest event that no projection covers, 0 when all are covered",
            ["shard"],
            registry=registry,
        )
        self.checkpoint_age_ms = Gauge(
            "noetl_checkpoint_age_ms",
            "Age of the oldest event that the checkpoint does not cover, else 0",
            ["shard"],
            registry=registry,
        )
        self.shard_owner = Gauge(
            "noetl_shard_owner",
            "1 when the instance owns the shard",
            ["shard", "instance"],
            registry=registry,
        )
        self.dispatch_ms = Histogram(
            "noetl_dispatch_latency_ms",
            "Time to commit one batch of decisions",
            buckets=LATENCY_BUCKETS_MS,
            registry=registry,
        )
        self.batch_events = Histogram(
            "noetl_batch_events", "Events in one commit", buckets=COUNT_BUCKETS, registry=registry
        )
        self.event_result_bytes = Histogram(
            "noetl_event_result_bytes",
            "Size of the envelope in an event",
            buckets=SIZE_BUCKETS_BYTES,
            registry=registry,
        )
        self.compactor_rate = Gauge(
            "noetl_compactor_events_per_second",
            "Events the compactor turns into manifests",
            ["shard"],
            registry=registry,
        )
        # -- work
        self.queue_depth = Gauge(
            "noetl_queue_depth", "Commands that are not over", ["pool", "status"], registry=registry
        )
        self.exchange_ms = Histogram(
            "noetl_exchange_latency_ms",
            "Time to answer a worker",
            ["kind"],
            buckets=LATENCY_BUCKETS_MS,
            registry=registry,
        )
        self.workers_lost = Counter(
            "noetl_workers_lost", "Workers whose connection broke for good", registry=registry
        )
        self.reference_resolve_ms = Histogram(
            "noetl_reference_resolve_ms",
            "Time to read a payload",
            ["tier"],
            buckets=LATENCY_BUCKETS_MS,
            registry=registry,
        )
        # -- HTTP
        self.http_ms = Histogram(
            "noetl_http_request_ms",
            "Time to answer a request",
            ["route", "status"],
            buckets=LATENCY_BUCKETS_MS,
            registry=registry,
        )
        self.streams = Gauge("noetl_event_streams", "Clients that follow events", registry=registry)

    def render_text(self) -> bytes:
        """All metrics in the Prometheus text format."""
        return generate_latest(self.registry)
