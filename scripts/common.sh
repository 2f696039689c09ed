# Shared by scripts/run and scripts/test; sourced, not run. Everything it says goes to standard error.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
build=$root/build

# Debian 12 packages that building the program and its tests needs.
packages=(cmake ninja-build g++ libboost-dev libboost-program-options-dev libyaml-cpp-dev libspdlog-dev libfmt-dev
  nlohmann-json3-dev zlib1g-dev doctest-dev python3)

# Runs a command quietly; shows what it printed only when it fails.
quietly() {
  local log status=0
  log=$(mktemp)
  "$@" >"$log" 2>&1 || status=$?
  if ((status != 0)); then
    cat "$log" >&2
    echo "kvsim: failed: $*" >&2
  fi
  rm -f "$log"
  return "$status"
}

# Installs the packages among its arguments that are missing. Needs no network when none is.
need_packages() {
  local missing=() package as_root=()
  if ! command -v dpkg-query >/dev/null; then
    echo "kvsim: not a Debian system: the packages below must be there already: $*" >&2
    return 0
  fi
  for package in "$@"; do
    [[ $(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null) == installed ]] || missing+=("$package")
  done
  ((${#missing[@]})) || return 0
  if ((EUID != 0)); then
    command -v sudo >/dev/null || { echo "kvsim: as root, please: apt-get install ${missing[*]}" >&2; return 1; }
    as_root=(sudo)
  fi
  echo "kvsim: installing ${missing[*]}" >&2
  apt_install() {
    "${as_root[@]}" apt-get -o DPkg::Lock::Timeout=300 update &&
      "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
        apt-get -o DPkg::Lock::Timeout=300 install -y --no-install-recommends "${missing[@]}"
  }
  quietly apt_install || { echo "kvsim: trying once more" >&2; sleep 5; quietly apt_install; }
}

# build_targets TARGET...: configures build/ once, then builds. Calls at the same time wait for each other.
build_targets() {
  local lock
  mkdir -p "$build"
  exec {lock}>"$build/.lock"
  flock "$lock"
  if [[ ! -f $build/build.ninja ]] || ! grep -qxF "CMAKE_HOME_DIRECTORY:INTERNAL=$root" "$build/CMakeCache.txt" 2>/dev/null; then
    echo "kvsim: configuring $build" >&2
    quietly cmake --fresh -S "$root" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release
  fi
  if [[ $(ninja -C "$build" -n "$@" 2>/dev/null | tail -n 1) != "ninja: no work to do." ]]; then
    echo "kvsim: building (once)" >&2
    quietly cmake --build "$build" -j "$(nproc)" --target "$@"
  fi
  exec {lock}>&-
}
