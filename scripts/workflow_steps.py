#!/usr/bin/env python3
"""workflow_steps.py WORKFLOW.yml NAME...: what the named steps of a GitHub workflow run, as one shell script each, in that order."""
import sys
import textwrap


def commands(text, name):
    """The script of a step `- name: NAME` that has `run: COMMAND`, or `run: |` and deeper lines."""
    lines = text.splitlines()
    starts = [i for i, line in enumerate(lines) if line.strip() == f"- name: {name}"]
    if len(starts) != 1:
        raise SystemExit(f"{len(starts)} steps are named '{name}'")
    for i in range(starts[0] + 1, len(lines)):
        line = lines[i].strip()
        if line.startswith("- "):
            break
        if not line.startswith("run:"):
            continue
        if line != "run: |":
            return line.removeprefix("run:").strip() + "\n"
        margin = len(lines[i]) - len(lines[i].lstrip())
        block = []
        for below in lines[i + 1:]:
            if below.strip() and len(below) - len(below.lstrip()) <= margin:
                break
            block.append(below)
        return textwrap.dedent("\n".join(block)).strip() + "\n"
    raise SystemExit(f"the step '{name}' runs nothing")


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as file:
        workflow = file.read()
    for step in sys.argv[2:]:
        # A subshell each, as a step ends with its `exit`.
        print("(\n" + commands(workflow, step) + ")")
