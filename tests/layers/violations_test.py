"""The layer check itself: a clean tree passes, each kind of violation fails and is named with file and line."""
import pathlib
import subprocess
import sys
import tempfile

CASES = [  # path, line, accepted
    ("sim/engine/a.cpp", '#include "kvsim/model/router.hpp"', True),
    ("sim/schedulers/a.cpp", '#include "kvsim/engine/outcome.hpp"', True),
    ("sim/config/load.cpp", "#include <yaml-cpp/yaml.h>", True),
    ("sim/report/json.cpp", "#include <nlohmann/json.hpp>", True),
    ("sim/model/a.cpp", '#include "kvsim/engine/outcome.hpp"', False),
    ("sim/routers/a.cpp", '#include "kvsim/engine/outcome.hpp"', False),
    ("include/kvsim/base/a.hpp", '#include "kvsim/config/value.hpp"', False),
    ("include/kvsim/report/a.hpp", '#include "kvsim/app/command.hpp"', False),
    ("sim/base/a.cpp", '#  include "kvsim/random/stream.hpp"', False),
    ("sim/config/schema.cpp", "#include <yaml-cpp/yaml.h>", False),
    ("sim/commands/run.cpp", "#include <spdlog/spdlog.h>", False),
    ("sim/main.cpp", "#include <boost/program_options.hpp>", False),
    ("include/kvsim/report/a.hpp", "#include <nlohmann/json.hpp>", False),
    ("include/kvsim/config/a.hpp", "#include <yaml-cpp/yaml.h>", False),
    ("sim/elsewhere/a.cpp", "#include <vector>", False),
    ("sim/engine/a.cpp", '#include "kvsim/unheard/of.hpp"', False),
]

failed = 0
for path, line, accepted in CASES:
    with tempfile.TemporaryDirectory() as tree:
        file = pathlib.Path(tree, path)
        file.parent.mkdir(parents=True)
        file.write_text(f"#pragma once\n{line}\n", encoding="utf-8")
        done = subprocess.run([sys.executable, sys.argv[1], tree], capture_output=True, text=True, check=False)
        named = accepted or str(file) in done.stdout
        if (done.returncode == 0) != accepted or not named:
            failed += 1
            print(f"{path}: {line}: expected {'pass' if accepted else 'fail'}, got {done.returncode}\n{done.stdout}{done.stderr}")
sys.exit(1 if failed else 0)
