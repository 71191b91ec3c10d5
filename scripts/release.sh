#!/bin/sh
# What a release consists of, in one folder: release.sh FOLDER, with PYTHON, after `make wheel`. docs/releasing.md
# IMAGE_OPTIONS go to buildah, such as --build-arg BASE=registry.example/python:3.11-slim-bookworm@sha256:...
set -eu
folder=$1
version=$("$PYTHON" -c 'import tomllib; print(tomllib.load(open("pyproject.toml", "rb"))["project"]["version"])')
rm -rf "$folder"
mkdir -p "$folder"
awk -v head="## [$version]" 'index($0, head) == 1 { on = 1; next } /^## / { on = 0 } on' CHANGELOG.md >"$folder/notes.md"
[ -s "$folder/notes.md" ] || { echo "CHANGELOG.md has no section for $version" >&2; exit 1; }
cp dist/chattts_serve-"$version"-*.whl "$folder"
"$PYTHON" -m build --sdist --outdir "$folder" . >"$folder/../sdist.log" 2>&1 || { tail "$folder/../sdist.log" >&2; exit 1; }
cp k8s/sbom.cdx.json "$folder/chattts_serve-$version.cdx.json"
# shellcheck disable=SC2086
if command -v buildah >/dev/null && buildah bud --quiet --format docker ${IMAGE_OPTIONS:-} --tag "chattts-serve:$version" .; then
    buildah push --quiet "chattts-serve:$version" "docker-archive:$folder/image.tar:chattts-serve:$version"
    gzip "$folder/image.tar"
    mv "$folder/image.tar.gz" "$folder/chattts_serve-$version-$(uname -m).image.tar.gz"
else
    echo "buildah is not here or could not build it: no image in $folder" >&2
fi
(cd "$folder" && sha256sum -- * >SHA256SUMS && cat SHA256SUMS)
