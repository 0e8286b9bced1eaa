"""Encodes a slice for a backend: a body, HTTP headers, and the labels that name the series.

Pyroscope would make a series for each value of a sample's label.  So samples have no labels, and equal stacks
of all threads are added up.  If a slice is sent again, it has the same id.

Source: grafana/pyroscope, api/push/v1/push.proto and api/types/v1/types.proto; parca-dev/parca,
proto/parca/profilestore/v1alpha1/profilestore.proto.
"""

import base64
import gzip
import json
import re
from collections.abc import Mapping
from hashlib import sha256
from uuid import UUID

from sfsample.formats.protobuf import message
from sfsample.history.facts import SliceFacts
from sfsample.report.formats import pprof
from sfsample.report.formats.otlp import export_request
from sfsample.report.merge import rebuild
from sfsample.report.report import Report, ReportThread

_NAME = "process_cpu"  # profile type that Pyroscope and Grafana show by default


def encode(kind: str, facts: SliceFacts, report: Report, identity: str) -> tuple[bytes, dict[str, str]]:
    """Return the body and the headers of a request; no other slice has the same `identity`."""
    nameless = report._replace(threads=(ReportThread("", ""),) * len(report.threads))
    report = rebuild(nameless, lambda frames: frames)  # adds up equal stacks of all threads
    known = {"service.name": facts.service, "host.name": facts.host or "", **facts.labels}
    labels = {key: text for key, text in sorted(known.items()) if text}
    if kind == "otlp":
        body = gzip.compress(export_request(report, labels, identity), 6, mtime=0)
        return body, {"Content-Type": "application/x-protobuf", "Content-Encoding": "gzip"}
    data, series = pprof.write(report, threads=False), series_labels(labels)
    if kind == "parca":
        named = [{"name": name, "value": text} for name, text in series.items()]
        document = {"series": [{"labels": {"labels": named},
                                "samples": [{"rawProfile": base64.b64encode(data).decode()}]}],
                    "normalized": True}  # fmt: skip
        return json.dumps(document).encode(), {"Content-Type": "application/json"}
    pairs = [message(1, message(1, name.encode()), message(2, text.encode("utf-8", "replace")))
             for name, text in series.items()]  # fmt: skip
    unique = str(UUID(bytes=sha256(identity.encode()).digest()[:16], version=4))
    sample = message(2, message(1, data), message(2, unique.encode()))  # raw_profile, ID
    return message(1, *pairs, sample), {"Content-Type": "application/proto"}


def series_labels(labels: Mapping[str, str]) -> dict[str, str]:
    """Return labels with names for Pyroscope and Parca; if names become equal, the last label stays."""
    named = {re.sub(r"[^a-zA-Z0-9_]|^(?=[0-9])", "_", key): text for key, text in labels.items()}
    return {**named, "__name__": _NAME, "service_name": labels.get("service.name", "")}
