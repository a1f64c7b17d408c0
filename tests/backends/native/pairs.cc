// A batching library: at most two requests share a batch.

#include "triton/core/tritonbackend.h"

extern "C" {

TRITONSERVER_Error* TRITONBACKEND_ModelBatcherInitialize(TRITONBACKEND_Batcher** batcher, TRITONBACKEND_Model*) {
  *batcher = reinterpret_cast<TRITONBACKEND_Batcher*>(new int(2));
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_ModelBatcherFinalize(TRITONBACKEND_Batcher* batcher) {
  delete reinterpret_cast<int*>(batcher);
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_ModelBatchInitialize(const TRITONBACKEND_Batcher* batcher, void** userp) {
  *userp = new int(*reinterpret_cast<const int*>(batcher));
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_ModelBatchIncludeRequest(TRITONBACKEND_Request*, void* userp, bool* should_include) {
  auto* free_places = static_cast<int*>(userp);
  *should_include = *free_places > 0;
  if (*should_include) --*free_places;
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_ModelBatchFinalize(void* userp) {
  delete static_cast<int*>(userp);
  return nullptr;
}

}  // extern "C"
