// Batching libraries: which requests may share a batch.

#include <dlfcn.h>

#include "objects.h"

using namespace tritonnb;

struct TnbStrategy {
  TRITONSERVER_Error* (*batcher_initialize)(TRITONBACKEND_Batcher**, TRITONBACKEND_Model*);
  TRITONSERVER_Error* (*batcher_finalize)(TRITONBACKEND_Batcher*);
  TRITONSERVER_Error* (*batch_initialize)(const TRITONBACKEND_Batcher*, void**);
  TRITONSERVER_Error* (*batch_include)(TRITONBACKEND_Request*, void*, bool*);
  TRITONSERVER_Error* (*batch_finalize)(void*);
  TRITONBACKEND_Batcher* batcher = nullptr;
};

namespace {

template <typename Function>
bool find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

}  // namespace

TNB_API TRITONSERVER_Error* tnb_strategy_open(const char* path, TRITONBACKEND_Model* model, TnbStrategy** strategy) {
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return error(TRITONSERVER_ERROR_NOT_FOUND, std::string("unable to load shared library: ") + dlerror());
  }
  auto found = std::make_unique<TnbStrategy>();
  const int count = find(library, "TRITONBACKEND_ModelBatcherInitialize", found->batcher_initialize) +
                    find(library, "TRITONBACKEND_ModelBatcherFinalize", found->batcher_finalize) +
                    find(library, "TRITONBACKEND_ModelBatchInitialize", found->batch_initialize) +
                    find(library, "TRITONBACKEND_ModelBatchIncludeRequest", found->batch_include) +
                    find(library, "TRITONBACKEND_ModelBatchFinalize", found->batch_finalize);
  if (count == 0) return nullptr;  // as on Triton: requests are batched as without it
  if (count < 5) {
    return error(
        TRITONSERVER_ERROR_INVALID_ARG, std::string(path) +
                                            " does not define all required custom batching functions for model " +
                                            model->facts->name);
  }
  if (auto* failure = found->batcher_initialize(&found->batcher, model)) return failure;
  *strategy = found.release();
  return nullptr;
}

TNB_API TRITONSERVER_Error* tnb_strategy_batch_new(TnbStrategy* strategy, void** batch) {
  return strategy->batch_initialize(strategy->batcher, batch);
}

TNB_API TRITONSERVER_Error* tnb_strategy_include(
    TnbStrategy* strategy, TRITONBACKEND_Request* request, void* batch, bool* include) {
  return strategy->batch_include(request, batch, include);
}

TNB_API TRITONSERVER_Error* tnb_strategy_batch_end(TnbStrategy* strategy, void* batch) {
  return batch == nullptr ? nullptr : strategy->batch_finalize(batch);
}

TNB_API TRITONSERVER_Error* tnb_strategy_close(TnbStrategy* strategy) {
  auto* failure = strategy->batcher_finalize(strategy->batcher);
  delete strategy;
  return failure;
}
