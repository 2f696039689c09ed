"""The example workflow's commands as they stand: they pass on the committed baseline and fail when a policy is made worse."""
import json
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path

source, program = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()
sys.path.insert(0, str(source / "scripts"))
import workflow_steps  # noqa: E402

workflow = (source / ".github/workflows/kvsim.yml").read_text()
sweep = workflow_steps.commands(workflow, "Sweep the batch policies")
gate = workflow_steps.commands(workflow, "Gate on the baseline")
names = sorted(path.stem for path in (source / "results/baseline").glob("*.yaml"))
assert names and all(name in sweep and name in gate for name in names), names


def checkout(folder):
    """What the commands see of a checkout after the build."""
    (folder / "build").mkdir()
    (folder / "build/kvsim").symlink_to(program)
    (folder / "scenarios").symlink_to(source / "scenarios")
    (folder / "results/baseline").mkdir(parents=True)
    for file in (source / "results/baseline").iterdir():
        (folder / "results/baseline" / file.name).write_bytes(file.read_bytes())


def run(folder, script):
    environment = dict(os.environ, GITHUB_ACTIONS="true", GITHUB_STEP_SUMMARY=str(folder / "summary.md"))
    return subprocess.run(["bash", "-e"], input=script, cwd=folder, env=environment, text=True, capture_output=True)


def failures(folder, name):
    root = ElementTree.parse(folder / f"results/gate/{name}.xml").getroot()
    cases = root.findall("./testsuite/testcase")
    assert int(root.get("tests")) == len(cases) > 0
    found = [case for case in cases if case.find("failure") is not None]
    assert int(root.get("failures")) == len(found)
    return {(case.get("classname"), case.get("name")) for case in found}


with tempfile.TemporaryDirectory() as temporary:
    folder = Path(temporary)
    checkout(folder)
    swept = run(folder, sweep)
    assert swept.returncode == 0, swept.stderr
    passed = run(folder, gate)
    assert passed.returncode == 0, passed.stdout + passed.stderr
    assert "::error" not in passed.stderr, passed.stderr
    assert (folder / "summary.md").read_text().count(": passed") == len(names)
    for name in names:
        assert not failures(folder, name)
        both = json.loads((folder / f"results/gate/{name}.json").read_text())
        parts = [json.loads((folder / f"results/gate/{name}.{part}.json").read_text()) for part in ("smaller", "bigger")]
        assert len(both) == len(parts[0]) + len(parts[1]) > 0
        assert all({"name", "unit", "value", "extra"} <= figure.keys() for figure in both)

    # The policies with too few seats, which the settings of long_context's sweep now say.
    plan = folder / "results/baseline/long_context.yaml"
    good = plan.read_text()
    plan.write_text(good.replace("set: {", "set: {engine.max_num_seqs: 4, "))
    only = [script.replace(" ".join(["long_context", "chat", "kv_pressure"]), "long_context") for script in (sweep, gate)]
    assert only[0] != sweep and only[1] != gate and plan.read_text() != good
    (folder / "summary.md").unlink()
    assert run(folder, only[0]).returncode == 0
    failed = run(folder, gate)
    assert failed.returncode == 1, failed.stdout + failed.stderr
    assert "::error title=long_context engine.preset=" in failed.stderr
    assert (folder / "summary.md").read_text().count("**failed**") == 1
    assert any(name == "ttft_p99_ms" for _, name in failures(folder, "long_context"))
    assert not failures(folder, "chat") and not failures(folder, "kv_pressure")

    # A higher watermark keeps blocks from admissions.
    plan = folder / "results/baseline/kv_pressure.yaml"
    plan.write_text(plan.read_text().replace("set: {", "set: {engine.watermark: 0.3, "))
    worse = run(folder, "build/kvsim sweep results/baseline/kv_pressure.yaml --out w --quiet\n"
                        "build/kvsim compare results/baseline/kv_pressure.csv w --metrics request_throughput,ttft_p99")
    assert worse.returncode == 1 and worse.stdout.count("REGRESSED") >= 2, worse.stdout + worse.stderr

    # Another grid than the baseline's is a mistake, not a regression.
    (folder / "one.yaml").write_text("base: scenarios/long_context.yaml\nset: {workload.requests: 20}\nvary: {engine.block_size: [16]}\n")
    mismatched = run(folder, "build/kvsim sweep one.yaml --out one --quiet; build/kvsim compare results/baseline/long_context.csv one")
    assert mismatched.returncode == 2 and "cannot be paired" in mismatched.stderr, mismatched.stderr
print("ok")
