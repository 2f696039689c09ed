#!/usr/bin/env python3
"""scripts/plot on fresh runs: each figure, its content, its errors. Arguments: source tree, kvsim, working folder."""
import contextlib
import csv
import importlib.machinery
import importlib.util
import io
import math
import os
import pathlib
import re
import shutil
import struct
import subprocess
import sys
import unittest
import xml.etree.ElementTree

root, kvsim, work = pathlib.Path(sys.argv[1]), sys.argv[2], pathlib.Path(sys.argv[3]) / "files"
SYSTEM_PYTHON = "/usr/bin/python3"
if importlib.util.find_spec("matplotlib") is None:
    if sys.executable != SYSTEM_PYTHON and os.path.exists(SYSTEM_PYTHON):
        os.execv(SYSTEM_PYTHON, [SYSTEM_PYTHON, *sys.argv])
    print("skipped: no matplotlib (apt-get install python3-matplotlib)")
    sys.exit(1 if os.environ.get("KVSIM_NO_SKIP") else 77)
sys.dont_write_bytecode = True
loader = importlib.machinery.SourceFileLoader("plot", str(root / "scripts/plot"))
plot = importlib.util.module_from_spec(importlib.util.spec_from_loader("plot", loader))
loader.exec_module(plot)


def call(*arguments):
    """(exit code, standard output, standard error) of scripts/plot, in this process: matplotlib takes half a second to load."""
    out, err = io.StringIO(), io.StringIO()
    before, sys.argv = sys.argv, ["plot", *map(str, arguments)]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                code = plot.main()
            except SystemExit as exit_:
                code = exit_.code
    finally:
        sys.argv = before
    if "matplotlib.pyplot" in sys.modules:
        sys.modules["matplotlib.pyplot"].close("all")
    return code, out.getvalue(), err.getvalue()


def run(*arguments, to=None):
    done = subprocess.run([kvsim, *map(str, arguments), "--quiet"], cwd=work, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    if to:
        (work / to).write_text(done.stdout)


def rows(path):
    with open(work / path, newline="") as file:
        return list(csv.DictReader(file))


def changed(source, target, change):
    table = rows(source)
    for number, row in enumerate(table):
        change(number, row)
    with open(work / target, "w", newline="") as file:
        writer = csv.DictWriter(file, table[0].keys(), lineterminator="\n")
        writer.writeheader()
        writer.writerows(table)
    return work / target


class Figures(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir(parents=True)
        chat = root / "scenarios/chat.yaml"
        few = ("--set", "workload.requests=60")
        run("sweep", chat, *few, "--vary", "engine.preset=vllm-v1,sglang", "--vary", "workload.arrivals.rate=4/s,8/s,60/s",
            "--repeat", 3, "--aggregate", "--out", work / "rates")
        run("sweep", chat, *few, "--vary", "engine.max_num_seqs=4,16,64", "--vary", "hardware.tensor_parallel_size=1,2",
            "--set", "workload.arrivals.rate=40/s", "--out", work / "grid")
        run(chat, *few, "--set", "measure.warmup=1s", "--out", work / "run")
        run(root / "scenarios/two_classes.yaml", *few, "--set", "hardware.replicas=2", "--out", work / "two")
        run("policies", chat, *few, "--presets", "vllm-v1,vllm-v0,sglang", "--format", "csv", to="policies.csv")

    def figure(self, *arguments):
        """Draws PNG and SVG, checks both, and returns what is written in the figure."""
        base = work / "figures" / self.id().rsplit(".", 1)[-1]
        code, out, err = call(*arguments, "--out", base)
        self.assertEqual((code, err), (0, ""))
        self.assertEqual(out.split(), [f"{base}.png", f"{base}.svg"])
        png, svg = pathlib.Path(f"{base}.png").read_bytes(), pathlib.Path(f"{base}.svg").read_bytes()
        self.assertEqual(png[:8], b"\x89PNG\r\n\x1a\n")
        width, height = struct.unpack(">II", png[16:24])
        self.assertTrue(500 <= width <= 2500 and 300 <= height <= 2000, (width, height))
        self.assertGreater(len(set(png)), 200)
        tree = xml.etree.ElementTree.fromstring(svg)
        self.assertEqual(tree.tag, "{http://www.w3.org/2000/svg}svg")
        self.assertNotIn(b"<dc:date>", svg)
        self.assertEqual(sorted(p.name for p in base.parent.glob("*.part")), [])
        return ["".join(text.itertext()) for text in tree.iter("{http://www.w3.org/2000/svg}text")]

    def refuse(self, part, *arguments):
        out = work / "refused"
        code, printed, err = call(*arguments, "--out", out)
        self.assertEqual(code, 2, err)
        self.assertEqual(printed, "")
        self.assertIn(part, err)
        self.assertEqual(err.count("\n"), 1)
        self.assertFalse(list(work.glob("refused*")))

    def test_latency_against_rate(self):
        words = self.figure("rate", work / "rates", "--limit", "ttft_p99_ms=200")
        for word in ("vllm-v1", "sglang", "TTFT [ms]", "TPOT [ms]", "E2E [ms]", "arrival rate [requests/s]"):
            self.assertIn(word, words)
        self.assertTrue(any("95 % interval over the seeds" in w for w in words))

    def test_a_sweep_and_its_aggregate_give_the_same_points(self):
        means, halves = {}, {}
        for name in ("sweep.csv", "aggregate.csv"):
            table = plot.Table(str(work / "rates" / name), ())
            means[name] = [p.value("ttft_p99_ms")[0] for p in plot.points_of(table)]
            halves[name] = [p.value("ttft_p99_ms")[1] for p in plot.points_of(table)]
        self.assertEqual(len(means["sweep.csv"]), 6)
        for a, b in zip(means["sweep.csv"] + halves["sweep.csv"], means["aggregate.csv"] + halves["aggregate.csv"]):
            self.assertTrue(math.isclose(a, b, rel_tol=1e-3), (a, b))

    def test_pareto_front(self):
        words = self.figure("pareto", work / "grid", "--by", "hardware.tensor_parallel_size")
        self.assertIn("output throughput for a GPU [tok/s/GPU]", words)
        self.assertIn("Pareto front", words)
        self.assertIn("tensor_parallel_size=2", words)
        self.assertTrue(any("front computed" in w for w in words))

    def test_pareto_marks_of_the_file_are_kept(self):
        marked = changed("grid/sweep.csv", "marked.csv", lambda n, row: row.update(pareto="1" if n == 3 else "0"))
        words = self.figure("pareto", marked)
        self.assertTrue(any("front as marked" in w for w in words))
        labels = [w for w in words if w.startswith("max_num_seqs=")]
        self.assertEqual(labels, ["max_num_seqs=" + rows("grid/sweep.csv")[3]["engine.max_num_seqs"]])

    def test_heat_map_writes_every_value(self):
        words = self.figure("heatmap", work / "grid", "--value", "output_throughput_tok_s")
        for row in rows("grid/sweep.csv"):
            value = float(row["output_throughput_tok_s"])
            self.assertIn(f"{value:.3g}" if value < 1000 else f"{value:,.0f}", words)
        self.assertIn("hardware.tensor_parallel_size", words)

    def test_latency_distribution(self):
        words = self.figure("cdf", work / "run", work / "two")
        late = sum(row["measured"] == "1" for row in rows("run/requests.csv"))
        self.assertTrue(0 < late < 60)
        self.assertTrue(any(w.startswith(f"run ({late} requests") for w in words), words)
        self.assertTrue(any(w.startswith("two (60 requests") for w in words), words)
        self.assertTrue(any(f"{60 - late} requests outside the measured part" in w for w in words), words)
        words = self.figure("cdf", work / "two", "--by", "class", "--metric", "ttft_ms")
        for name in {row["class"] for row in rows("two/requests.csv")}:
            self.assertTrue(any(w.startswith(name + " (") for w in words), words)

    def test_timeline(self):
        words = self.figure("timeline", work / "two")
        for word in ("KV cache in use [%]", "waiting requests", "simulated time [s]", "replica 0", "replica 1"):
            self.assertIn(word, words)

    def test_policies_of_the_command(self):
        words = self.figure("policies", work / "policies.csv")
        for word in ("vllm-v1", "vllm-v0", "sglang", "TTFT: longer than vllm-v1 by [ms]"):
            self.assertIn(word, words)

    def test_policies_of_a_sweep(self):
        words = self.figure("policies", work / "rates")
        for word in ("vllm-v1", "sglang", "rate=60/s", "output throughput [tok/s]"):
            self.assertIn(word, words)

    def test_the_same_file_gives_the_same_bytes(self):
        for suffix in ("png", "svg"):
            for name in ("a", "b"):
                self.assertEqual(call("heatmap", work / "grid", "--out", work / f"same/{name}.{suffix}")[0], 0)
            self.assertEqual((work / f"same/a.{suffix}").read_bytes(), (work / f"same/b.{suffix}").read_bytes())

    def test_suffix_chooses_the_kind(self):
        for name in ("one.png", "one.svg"):
            code, out, _ = call("timeline", work / "run", "--out", work / "suffix" / name)
            self.assertEqual((code, out), (0, f"{work / 'suffix' / name}\n"))
        self.assertEqual(sorted(p.name for p in (work / "suffix").iterdir()), ["one.png", "one.svg"])

    def test_failed_rows_are_told(self):
        def fail(number, row):
            if number == 0:
                row.update(error="the model does not fit", **{c: "" for c in row if c.endswith("_ms")})
        failed = changed("grid/sweep.csv", "failed.csv", fail)
        self.assertTrue(any("1 failed rows" in w for w in self.figure("pareto", failed)))
        self.refuse("every one of the 6 rows failed: no", "rate",
                    changed("grid/sweep.csv", "all_failed.csv", lambda n, row: row.update(error="no")))

    def test_refusals(self):
        sweep, grid = work / "rates/sweep.csv", work / "grid"
        self.refuse("did you mean 'ttft_p99_ms'?", "rate", sweep, "--y", "ttft_p9_ms")
        self.refuse("this is requests.csv; a timeline is drawn from timeline.csv", "timeline", work / "run/requests.csv")
        self.refuse("this is sweep.csv; a latency distribution is drawn from requests.csv", "cdf", sweep)
        self.refuse("No such file or directory", "rate", work / "missing.csv")
        self.refuse("a folder without timeline.csv", "timeline", work / "rates")
        (work / "empty.csv").write_text("")
        self.refuse("empty.csv: empty", "rate", work / "empty.csv")
        (work / "header.csv").write_text("point,scenario\n")
        self.refuse("a header and no rows", "rate", work / "header.csv")
        (work / "short.csv").write_text("point,scenario\n1\n")
        self.refuse("short.csv:2: 1 fields under a header of 2", "rate", work / "short.csv")
        (work / "twice.csv").write_text("point,point\n1,1\n")
        self.refuse("column 'point' stands there twice", "rate", work / "twice.csv")
        (work / "binary.csv").write_bytes(b"\xff\xfe\x00\x01")
        self.refuse("not a text file", "rate", work / "binary.csv")
        (work / "nul.csv").write_bytes(b"point,scenario\n1,\0\n")
        self.refuse("nul.csv", "rate", work / "nul.csv")
        for text in ("soon", "nan"):
            bad = changed("rates/sweep.csv", "bad.csv", lambda n, row, t=text: row.update(ttft_p99_ms=t) if n == 4 else None)
            self.refuse(f"bad.csv:6: ttft_p99_ms: '{text}' is not a number", "rate", bad)
        self.refuse("holds names", "rate", sweep, "--x", "engine.preset")
        self.refuse("the column has 1, 2", "pareto", grid, "--where", "hardware.tensor_parallel_size=3")
        self.refuse("takes two varied keys", "heatmap", changed("grid/sweep.csv", "line.csv",
                                                               lambda n, row: row.update({"engine.max_num_seqs": "4"})))
        self.refuse("several points have", "heatmap", grid, "--x", "gpu", "--y", "engine.max_num_seqs")
        self.refuse("the panels show", "rate", sweep, "--limit", "kv_usage_mean=1")
        self.refuse("choose the key to compare", "policies", grid)
        many = work / "many.csv"
        changed("grid/sweep.csv", "many.csv", lambda n, row: None)
        lines = many.read_text().splitlines()
        many.write_text("\n".join([lines[0]] + [re.sub(r"^\d+,\d+", f"{n},{n}", lines[1]) for n in range(20)]) + "\n")
        self.refuse("20 curves are too many", "rate", many)
        self.assertEqual(call("rate", sweep, "--out", work / "x.pdf")[0], 2)
        self.assertEqual(call("rate", sweep, "--out", sweep / "x.png")[0], 2)
        self.assertEqual(call("nonsense", sweep)[0], 2)
        self.assertEqual(call("rate", sweep, "--limit", "ttft_p99_ms=soon")[0], 2)

    def test_help(self):
        code, text, _ = call("-h")
        self.assertEqual(code, 0)
        for kind in ("rate", "pareto", "heatmap", "cdf", "timeline", "policies"):
            self.assertIn(f"    {kind} ", text)
            code, own, _ = call(kind, "--help")
            self.assertEqual((code, "--out NAME" in own), (0, True))
        self.assertIn("95 % intervals", " ".join(text.split()))
        self.assertIn("95 % intervals", own)

    def test_without_matplotlib_one_line_says_what_to_install(self):
        hidden = work / "hidden"
        hidden.mkdir()
        (hidden / "matplotlib.py").write_text("raise ImportError\n")
        done = subprocess.run([root / "scripts/plot", "timeline", work / "run", "--out", work / "none"], capture_output=True, text=True,
                              env={**os.environ, "PYTHONPATH": str(hidden)})
        self.assertEqual((done.returncode, done.stderr),
                         (2, "scripts/plot: figures need matplotlib: apt-get install python3-matplotlib\n"))

    def test_standard_input(self):
        with open(work / "policies.csv") as table:
            done = subprocess.run([root / "scripts/plot", "policies", "-", "--out", work / "piped.svg"], capture_output=True,
                                  text=True, stdin=table)
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, f"{work / 'piped.svg'}\n", ""))


class Figuring(unittest.TestCase):
    def test_front(self):
        self.assertEqual(plot.front_of([(1, 5), (2, 4), (2, 3), (3, 3), (0, 5), (3, 3), (2.5, 3.5)]), [1 - 1, 1, 3, 5, 6])
        self.assertEqual(plot.front_of([(1, 1)]), [0])

    def test_interval(self):
        mean, half = plot.mean_and_half_width([1.0, 2.0, 3.0])
        self.assertAlmostEqual(mean, 2)
        self.assertAlmostEqual(half, 4.3027 / math.sqrt(3), 3)
        self.assertEqual(plot.mean_and_half_width([7.0]), (7.0, None))
        _, half = plot.mean_and_half_width([0.0, 1.0] * 50)
        self.assertAlmostEqual(half, 1.98422 * math.sqrt(100 / 99) / 2 / 10, 4)

    def test_quantities(self):
        self.assertEqual(plot.quantity("4/s"), (4, "1/s"))
        self.assertEqual(plot.quantity("120/min"), (2, "1/s"))
        self.assertEqual(plot.quantity("250ms"), (0.25, "s"))
        self.assertEqual(plot.quantity("512MiB"), (0.5, "GiB"))
        self.assertEqual(plot.quantity("1e3"), (1000, ""))
        self.assertIsNone(plot.quantity("vllm-v1"))
        self.assertIsNone(plot.quantity("4 parsecs"))


if __name__ == "__main__":
    result = unittest.main(argv=sys.argv[:1], exit=False).result
    sys.exit(0 if result.wasSuccessful() else 1)
