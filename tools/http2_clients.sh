#!/usr/bin/env bash
# Other HTTP/2 stacks against the gRPC port of a running server with the model identity_fp32:
#   tools/http2_clients.sh PORT
# Needs nghttp and h2load (Debian: nghttp2-client), and node with the package @grpc/grpc-js in the current directory.
set -euo pipefail
port=${1:?expected the gRPC port of a server}
here=$(cd "$(dirname "$0")" && pwd)
body=$(mktemp)
trap 'rm -f "$body"' EXIT
python3 -m tools.grpc_message >"$body"
url=http://127.0.0.1:$port/inference.GRPCInferenceService/ModelInfer
headers=(-H 'content-type: application/grpc' -H 'te: trailers')

echo "nghttp: one call"
nghttp --verbose -H ':method: POST' "${headers[@]}" --data="$body" "$url" | grep -a 'grpc-status: 0'
for streams in 1 10 100; do
  echo "h2load: 20,000 calls on 16 connections with $streams streams"
  h2load --requests=20000 --clients=16 --max-concurrent-streams="$streams" "${headers[@]}" --data="$body" "$url" |
    grep -E '^(requests|finished)' | tee /dev/stderr | grep -q ' 20000 succeeded, 0 failed, 0 errored, 0 timeout'
done
echo "grpc-js"
NODE_PATH=$PWD/node_modules node "$here/grpc_js_client.cjs" "$port" "$body"
