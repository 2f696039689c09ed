#!/usr/bin/env python3
"""Checks that includes point only downwards and that heavy libraries stay in their files. Argument: the tree's root."""
import pathlib
import re
import sys

LAYERS = ["base", "random", "config", "model", "engine", "report", "app"]
FOLDERS = {"workloads": "model", "step_time": "model", "routers": "model", "schedulers": "engine", "policies": "engine", "kv_managers": "engine",
           "commands": "app", "selftest": "app", "registry.cpp": "app", "main.cpp": "app"}
# Header prefix -> the places below sim/ that may include it; no public header ever may.
HEAVY = {"yaml-cpp/": ["config/load.cpp"], "spdlog/": ["commands/log.cpp"],
         "boost/program_options": ["commands/command_line.cpp"], "boost/accumulators": ["report/"], "nlohmann/": [""]}
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]')


def check(root):
    for base in (root / "include/kvsim", root / "sim"):
        for path in sorted(p for p in base.rglob("*") if p.suffix in (".hpp", ".cpp")):
            place = path.relative_to(base)
            layer = FOLDERS.get(place.parts[0], place.parts[0])
            if layer not in LAYERS:
                yield f"{path}:1: no layer is known for {place.parts[0]}"
                continue
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
                header = (INCLUDE.match(line) or [None, ""])[1]
                parts = header.split("/")
                if parts[0] == "kvsim" and (parts[1] not in LAYERS or LAYERS.index(parts[1]) > LAYERS.index(layer)):
                    yield f"{path}:{number}: {layer} must not include {header}"
                for prefix, allowed in HEAVY.items():
                    if header.startswith(prefix) and not (
                            base.name == "sim" and any(str(place).startswith(a) for a in allowed)):
                        yield f"{path}:{number}: {header} belongs only in {', '.join(f'sim/{a}' for a in allowed)}"


problems = list(check(pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent.parent)))
print("\n".join(problems) or "layers: ok")
sys.exit(1 if problems else 0)
