# Unpacks hasp from a release, after a look at its checksum, and tells the next step where it is.
set -euo pipefail

case "$(uname -s)" in Linux) os=linux ;; Darwin) os=darwin ;; *) os=unknown ;; esac
case "$(uname -m)" in x86_64 | amd64) arch=amd64 ;; aarch64 | arm64) arch=arm64 ;; *) arch=unknown ;; esac
cd "$RELEASE"
archives=(hasp_*_"${os}_$arch".tar.gz)
if [ ${#archives[@]} != 1 ] || [ ! -f "${archives[0]}" ]; then
	echo "::error::$RELEASE has not one archive hasp_VERSION_${os}_$arch.tar.gz" >&2
	exit 1
fi
# The line of this file alone, so that a file that is not in the list is none that has passed.
if ! line=$(awk -v name="${archives[0]}" '$2 == name' SHA256SUMS) || [ -z "$line" ]; then
	echo "::error::SHA256SUMS in $RELEASE does not have ${archives[0]}" >&2
	exit 1
fi
sum=(sha256sum)
command -v sha256sum >/dev/null || sum=(shasum -a 256)
if ! "${sum[@]}" -c - <<<"$line" >&2; then
	echo "::error::${archives[0]} is not the file that SHA256SUMS names: nothing of it is run" >&2
	exit 1
fi
to=$(mktemp -d "${RUNNER_TEMP:-/tmp}/hasp.XXXXXX")
tar -xzf "${archives[0]}" -C "$to"
program=$to/${archives[0]%.tar.gz}/usr/bin/hasp
"$program" version
echo "program=$program" >>"$GITHUB_OUTPUT"
