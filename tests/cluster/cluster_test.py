#!/usr/bin/env python3
"""The files in scripts/cluster, run: what they merge has the bytes of the unsharded sweep. Arguments: system, source tree, kvsim,
working folder. Exit 77, with the reason, where the system is not installed."""
import contextlib
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

system, root, kvsim = sys.argv[1], pathlib.Path(sys.argv[2]), sys.argv[3]
cluster = root / "scripts/cluster"
work = pathlib.Path(sys.argv[4]) / system
TIMEOUT = 60  # s, for each command
# What a batch system around this test tells must not reach the sweeps.
clean = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "PARALLEL", "JOB_COMPLETION", "OMPI_", "PMI", "SGE_", "PBS_"))}


def skip(reason):
    print("skipped:", reason)
    sys.exit(1 if os.environ.get("KVSIM_NO_SKIP") and system in ("parallel", "slurm") else 77)


def need(program, package):
    path = shutil.which(program, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
    if not path:
        skip(f"no {program} (apt-get install {package})")
    return path


def run(*command, expect=0, env=None, cwd=None):
    done = subprocess.run([str(c) for c in command], env={**clean, "KVSIM": kvsim, **(env or {})}, cwd=cwd or work, text=True,
                          capture_output=True, timeout=TIMEOUT)
    if done.returncode != expect:
        raise AssertionError(f"exit {done.returncode}, not {expect}: {command}\n{done.stdout}{done.stderr}")
    return done.stdout


def prepare():
    """A sweep of 12 rows, another one whose second point fails, and the files of the whole."""
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    shutil.copy(root / "scenarios/chat.yaml", work)
    grid = work / "the grid.yaml"
    grid.write_text("base: chat.yaml\nset: {workload.requests: 40}\nrepeat: 2\nvary:\n"
                    "  engine.max_num_seqs: [8, 32]\n  workload.arrivals.rate: [4/s, 8/s, 12/s]\n")
    run(kvsim, "sweep", grid, "--out", work / "whole", "--quiet")
    failing = work / "failing.yaml"  # a twentieth of the memory does not hold the weights
    failing.write_text("base: chat.yaml\nset: {workload.requests: 20}\nvary:\n  engine.gpu_memory_utilization: [0.9, 0.05, 0.8]\n")
    run(kvsim, "sweep", failing, "--out", work / "whole failing", "--quiet", expect=1)
    return grid, failing


def same(folder, whole="whole"):
    expected, merged = (work / whole / "sweep.csv").read_bytes(), (work / folder / "sweep.csv").read_bytes()
    assert expected.count(b"\n") > 3 and merged == expected, f"{folder}: not the bytes of the unsharded sweep"


def parallel():
    need("parallel", "parallel")
    grid, failing = prepare()
    run(cluster / "parallel.sh", grid, work / "an out", 5, "--jobs", 2)
    same("an out")
    assert (work / "an out/joblog").read_text().count("\n") == 6
    # A shard is lost: the second start does that one only.
    before = {p.name: p.stat().st_mtime_ns for p in (work / "an out").glob("shard-*")}
    assert len(before) == 5
    (work / "an out/shard-3-of-5.csv").unlink()
    (work / "an out/sweep.csv").unlink()
    run(cluster / "parallel.sh", grid, work / "an out", 5)
    same("an out")
    after = {p.name: p.stat().st_mtime_ns for p in (work / "an out").glob("shard-*")}
    assert [n for n in before if before[n] != after[n]] == ["shard-3-of-5.csv"], (before, after)
    # Failing points are rows and exit 1; a grid that is wrong is not merged.
    run(cluster / "parallel.sh", failing, work / "failing", 2, expect=1)
    same("failing", "whole failing")
    (work / "wrong.yaml").write_text("base: chat.yaml\nvary: {engine.no_such_key: [1, 2]}\n")
    run(cluster / "parallel.sh", work / "wrong.yaml", work / "wrong", 2, expect=2)
    assert not (work / "wrong/sweep.csv").exists()


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


@contextlib.contextmanager
def slurm_node(slurmctld, slurmd):
    """slurmctld and slurmd of this test alone: own ports and folders, no munge, no cgroups, no accounting. Always torn down."""
    with tempfile.TemporaryDirectory(prefix="kvsim-slurm-") as temporary:
        home, host = pathlib.Path(temporary), socket.gethostname().split(".")[0]
        for name in ("state", "spool"):
            (home / name).mkdir()
        user = subprocess.run(["id", "-un"], capture_output=True, text=True, check=True).stdout.strip()
        conf = home / "slurm.conf"
        conf.write_text(f"""ClusterName=kvsim
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={free_port()}
SlurmdPort={free_port()}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/none
CredType=cred/none
ProctrackType=proctrack/pgid
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ReturnToService=2
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1
SlurmdParameters=config_overrides
StateSaveLocation={home}/state
SlurmdSpoolDir={home}/spool
SlurmctldPidFile={home}/slurmctld.pid
SlurmdPidFile={home}/slurmd.pid
SlurmctldLogFile={home}/slurmctld.log
SlurmdLogFile={home}/slurmd.log
KillWait=1
NodeName={host} NodeAddr=127.0.0.1 CPUs=4 RealMemory=100 State=UNKNOWN
PartitionName=all Nodes={host} Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:4
""")
        (home / "cgroup.conf").write_text("")
        env = {"SLURM_CONF": str(conf)}
        daemons = []
        try:
            for command in ([slurmctld, "-D"], [slurmd, "-D"]):
                daemons.append(subprocess.Popen(command, env={**clean, **env}, cwd=home, stdin=subprocess.DEVNULL,
                                                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
            deadline = time.monotonic() + 30
            while subprocess.run(["sinfo", "-h", "-o", "%T"], env={**clean, **env}, capture_output=True, text=True).stdout.strip() != "idle":
                if any(d.poll() is not None for d in daemons) or time.monotonic() > deadline:
                    logs = "".join(f.read_text()[-2000:] for f in home.glob("*.log"))
                    raise AssertionError(f"the Slurm node does not come up:\n{logs}")
                time.sleep(0.1)
            yield env
        finally:
            subprocess.run(["scancel", "--user", user], env={**clean, **env}, capture_output=True, timeout=20)
            for daemon in reversed(daemons):
                daemon.terminate()
            for daemon in daemons:
                try:
                    daemon.wait(10)
                except subprocess.TimeoutExpired:
                    daemon.kill()
                    daemon.wait()
            # Step daemons leave their session; they are ours if they have this configuration.
            for entry in pathlib.Path("/proc").glob("[0-9]*"):
                with contextlib.suppress(OSError):
                    if str(conf).encode() in (entry / "environ").read_bytes() and int(entry.name) != os.getpid():
                        os.kill(int(entry.name), signal.SIGKILL)


def slurm():
    slurmctld, slurmd = need("slurmctld", "slurm-wlm"), need("slurmd", "slurm-wlm")
    need("sbatch", "slurm-wlm")
    grid, failing = prepare()
    with slurm_node(slurmctld, slurmd) as env:
        def wait_for(job):
            deadline = time.monotonic() + TIMEOUT
            while True:
                lines = run("scontrol", "-o", "show", "job", job, env=env).splitlines()
                fields = [dict(f.split("=", 1) for f in line.split() if "=" in f) for line in lines]
                if all(f["JobState"] not in ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING") for f in fields):
                    return sorted((f["JobState"], f["ExitCode"]) for f in fields)
                assert time.monotonic() < deadline, lines
                time.sleep(0.1)

        # As the files' own comments say it: an array and a merge that waits for it.
        job = run("sbatch", "--parsable", "--array=0-4", cluster / "slurm_array.sh", grid, work / "array", env=env).strip()
        merge = run("sbatch", "--parsable", f"--dependency=afterany:{job}", "--wrap", f"{kvsim} merge '{work}/array' --out '{work}/array'",
                    env=env).strip()
        ranks = run("sbatch", "--parsable", "--ntasks=3", cluster / "slurm_srun.sh", grid, work / "ranks", env=env).strip()
        fails = run("sbatch", "--parsable", "--array=1-3", cluster / "slurm_array.sh", failing, work / "failing", env=env).strip()
        logs = lambda: "".join(f"{p.name}: {p.read_text()}" for p in sorted(work.glob("slurm-*.out")))
        assert wait_for(job) == [("COMPLETED", "0:0")] * 5, logs()
        assert wait_for(merge) == [("COMPLETED", "0:0")], logs()
        same("array")
        assert sorted(p.name for p in (work / "array").glob("shard-*")) == [f"shard-{i}-of-5.csv" for i in range(5)]
        assert wait_for(ranks) == [("COMPLETED", "0:0")], logs()
        same("ranks")
        assert sorted(p.name for p in (work / "ranks").glob("shard-*")) == [f"shard-{i}-of-3.csv" for i in range(3)]
        # Failing points are rows, not failed tasks; an array may begin at 1.
        assert wait_for(fails) == [("COMPLETED", "0:0")] * 3, logs()
        run(kvsim, "merge", work / "failing", "--out", work / "failing")
        same("failing", "whole failing")
        # A lost task alone, and a merge before it is back.
        (work / "array/shard-3-of-5.csv").unlink()
        (work / "array/sweep.csv").unlink()
        run(kvsim, "merge", work / "array", "--out", work / "array", expect=2)
        again = run("sbatch", "--parsable", "--array=3", cluster / "slurm_array.sh", grid, work / "array", env={**env, "SHARDS": "5"}).strip()
        assert wait_for(again) == [("COMPLETED", "0:0")], logs()
        run(kvsim, "merge", work / "array", "--out", work / "array")
        same("array")


def kubernetes():
    """No cluster here: the manifest is read, and its own command run as each pod would, with the variable that the pod has."""
    try:
        import yaml
    except ImportError:
        skip("no YAML reader for Python (apt-get install python3-yaml)")
    grid, failing = prepare()
    (job,) = yaml.safe_load_all((cluster / "kubernetes_job.yaml").read_text())
    (merge,) = yaml.safe_load_all((cluster / "kubernetes_merge.yaml").read_text())
    spec = job["spec"]
    assert (job["apiVersion"], job["kind"], spec["completionMode"]) == ("batch/v1", "Job", "Indexed")
    assert spec["template"]["spec"]["restartPolicy"] == "Never" and merge["kind"] == "Job"
    (container,) = spec["template"]["spec"]["containers"]
    (merger,) = merge["spec"]["template"]["spec"]["containers"]
    mounts, volumes = container["volumeMounts"], spec["template"]["spec"]["volumes"]
    assert {m["name"] for m in mounts} == {v["name"] for v in volumes}
    assert {m["mountPath"] for m in mounts} == {"/grid", "/results"}
    assert container["image"] == merger["image"]

    def pod(container, out, source, index=None):
        places = {"/grid/grid.yaml": f"'{source}'", "/results": f"'{work / out}'"}
        command = container["command"] + container.get("args", [])
        for path, place in places.items():
            command = [c.replace(path, place if command[0] == "/bin/sh" else place.strip("'")) for c in command]
        binaries = work / "bin"
        binaries.mkdir(exist_ok=True)
        if not (binaries / "kvsim").exists():
            (binaries / "kvsim").symlink_to(kvsim)
        env = {"PATH": f"{binaries}:{clean['PATH']}"}
        run(*command, env=env if index is None else {**env, "JOB_COMPLETION_INDEX": str(index)})

    for index in range(spec["completions"]):
        pod(container, "pods", grid, index)
    pod(merger, "pods", grid)
    same("pods")
    assert len(list((work / "pods").glob("shard-*-of-8.csv"))) == spec["completions"]
    for index in range(spec["completions"]):
        pod(container, "failing", failing, index)
    pod(merger, "failing", failing)
    same("failing", "whole failing")


def snakemake():
    program = need("snakemake", "snakemake")
    grid, failing = prepare()
    common = ("--snakefile", cluster / "Snakefile", "--cores", 2, "--quiet", "--config", f"kvsim={kvsim}", "shards=3")
    env = {"XDG_CACHE_HOME": str(work / "cache"), "HOME": str(work)}
    run(program, *common, f"grid={grid}", f"out={work / 'rules'}", "--dryrun", env=env)
    assert not (work / "rules").exists()
    run(program, *common, f"grid={grid}", f"out={work / 'rules'}", env=env)
    same("rules")
    run(program, *common, f"grid={failing}", f"out={work / 'failing'}", env=env)
    same("failing", "whole failing")


{"parallel": parallel, "slurm": slurm, "kubernetes": kubernetes, "snakemake": snakemake}[system]()
print("ok")
