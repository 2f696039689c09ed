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

    # One policy with too few seats: its own points fail, the others' do not.
    plan = folder / "results/baseline/long_context.yaml"
    worse = plan.read_text().replace("[vllm-v1, vllm-v0, sglang]", "[vllm-v1, vllm-v0, sglang]\n  engine.max_num_seqs: [4]")
    assert worse != plan.read_text()
    plan.write_text(worse)
    assert run(folder, sweep).returncode == 0
    mismatched = run(folder, gate)
    assert mismatched.returncode == 2 and "cannot be paired" in mismatched.stderr, mismatched.stderr
    plan.write_text(worse.replace("\n  engine.max_num_seqs: [4]", "").replace("set: {", "set: {engine.max_num_seqs: 4, "))
    (folder / "summary.md").unlink()
    assert run(folder, sweep).returncode == 0
    failed = run(folder, gate)
    assert failed.returncode == 1, failed.stdout + failed.stderr
    assert "::error title=long_context engine.preset=" in failed.stderr
    assert (folder / "summary.md").read_text().count("**failed**") == 1
    broken = failures(folder, "long_context")
    assert any(name == "ttft_p99_ms" for _, name in broken), broken
    assert not failures(folder, "chat") and not failures(folder, "kv_pressure")
print("ok")
