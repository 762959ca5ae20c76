#!/usr/bin/env bash
# generate.sh PYTHON_ROOT ES_ROOT: writes the generated code for proto/ there, and nothing else stays
# in PYTHON_ROOT/qim and ES_ROOT, so that a deleted proto file leaves no module behind.
set -euo pipefail
cd "$(dirname "$0")/.."

python_root=$1
es_root=$2
# The plugins for the stubs (mypy-protobuf) are found on PATH.
PATH=$PWD/.venv/bin:$PATH

rm -rf "$python_root/qim" "$es_root"
mkdir -p "$python_root/qim" "$es_root"

# The root of the generated package is the root of the imports, so nothing is ever rewritten.
# (Names of proto files hold no spaces, and bash 3.2 has no mapfile.)
protos=($(cd proto && find . -name '*.proto' | sed 's|^\./||' | LC_ALL=C sort))
services=($(cd proto && grep -l '^service ' "${protos[@]}"))

protoc() { python -m grpc_tools.protoc --proto_path=proto "$@"; }

protoc --python_out="$python_root" --pyi_out="$python_root" "${protos[@]}"
# Only files with a service: for any other the plugin writes a module without content.
protoc --grpc_python_out="$python_root" --mypy_grpc_out=quiet:"$python_root" "${services[@]}"
touch "$python_root/qim/py.typed"

protoc --plugin=protoc-gen-es=compat/drivers/es/node_modules/.bin/protoc-gen-es \
  --es_out="$es_root" --es_opt=target=js,import_extension=js "${protos[@]}"
