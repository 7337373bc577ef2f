#!/bin/sh
# Make a release from a clean checkout: a tag, the wheel and the source distribution with checksums, and the
# archive's metadata. A version in preparation first gets its number into every file that names one, its date into
# the changelog, and a commit. Nothing leaves this machine: the last lines name the commands that publish it.
#     deploy/release.sh VERSION BUILD...     BUILD: the command that builds into a folder given as last argument
set -eu
version=$1
shift
stop() {
    echo "error: $1" >&2
    exit 2
}
echo "$version" | grep -Eqx '[0-9]+\.[0-9]+\.[0-9]+' || stop "the version is $version: give one such as 1.0.0"
[ -z "$(git status --porcelain)" ] || stop "there are uncommitted changes: commit them first"
! git rev-parse -q --verify "refs/tags/v$version" >/dev/null || stop "the tag v$version exists: give a later version"
grep -Eqx "## $version, (in preparation|[0-9]+-[0-9]+-[0-9]+)" CHANGELOG.md ||
    stop "CHANGELOG.md has no section '## $version, in preparation': write what is new"

old=$(sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
if grep -q "^## $version, in preparation\$" CHANGELOG.md; then
    today=$(date +%F)
    sed -i "s/$(echo "$old" | sed 's/\./\\./g')/$version/" \
        pyproject.toml CITATION.cff codemeta.json deploy/conda/recipe.yaml paper/paper.md
    sed -i "s/^## $version, in preparation\$/## $version, $today/" CHANGELOG.md
    sed -i '/^date-released:/d' CITATION.cff
    echo "date-released: $today" >>CITATION.cff
    git commit -qam "Version $version"
elif [ "$old" != "$version" ]; then
    stop "CHANGELOG.md dates $version, but pyproject.toml has $old: give the version in preparation"
fi
today=$(sed -n "s/^## $version, //p" CHANGELOG.md)

rm -rf dist
"$@" dist
# what an archive such as Zenodo reads from a repository: the same facts as in codemeta.json
python3 - "$version" "$today" >dist/.zenodo.json <<'PYTHON'
import json, sys

facts = json.load(open("codemeta.json"))
metadata = {
    "title": f"{facts['name']} {sys.argv[1]}",
    "version": sys.argv[1],
    "publication_date": sys.argv[2],
    "upload_type": "software",
    "license": facts["license"].rsplit("/", 1)[1],
    "description": facts["description"],
    "creators": [{"name": author["name"]} for author in facts["author"]],
    "keywords": facts["keywords"],
}
print(json.dumps(metadata, indent=2))
PYTHON
git archive --prefix="homodyne_dask-$version/" -o "dist/homodyne_dask-$version-source.tar.gz" HEAD
(cd dist && sha256sum -- *.whl *.tar.gz .zenodo.json >SHA256SUMS)
git tag -a "v$version" -m "homodyne_dask $version"
ls -A dist
cat <<TEXT

Version $version is committed, tagged and in dist/; nothing was published. To publish it, run yourself:
    git push origin HEAD "v$version"
    python -m twine upload dist/*.whl dist/homodyne_dask-$version.tar.gz
and give the archive dist/homodyne_dask-$version-source.tar.gz with dist/.zenodo.json.
TEXT
