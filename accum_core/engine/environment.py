"""Where and with what a run is computed."""

from __future__ import annotations

import platform
from datetime import UTC, datetime
from pathlib import Path

import torch

from accum_core.provenance import code_version
from accum_core.records import Environment


def describe(device: torch.device) -> Environment:
    """The present process: code, Python, torch, machine, device, threads and today's date (UTC)."""
    return Environment(
        code_version=code_version(),
        python=platform.python_version(),
        torch=torch.__version__,
        platform=f"{platform.system()} {platform.machine()}",
        processor=_processor(),
        device=torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        threads=torch.get_num_threads(),
        date=datetime.now(UTC).date().isoformat(),
    )


def _processor() -> str:
    """The processor's name; Linux tells it in a file of its own."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        for line in cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or "unknown"
