// What tritonnb calls: backends, models, instances, requests and responses.

#include "host.h"

#include <dlfcn.h>

#include <cstring>

#include "objects.h"

using namespace tritonnb;

namespace {

template <typename Function>
Function* find(void* library, const char* name) {
  return reinterpret_cast<Function*>(dlsym(library, name));
}

// Call an optional function of a library with one argument.
template <typename T>
TRITONSERVER_Error* call(void* library, const char* name, T* argument) {
  auto* function = find<TRITONSERVER_Error*(T*)>(library, name);
  return function == nullptr ? nullptr : function(argument);
}

}  // namespace

namespace tritonnb {

void drop_request(TRITONBACKEND_Request* request) {
  if (--request->holders != 0) return;
  for (auto& state : request->states) state.buffer.reset();
  RecentlyEnded<TRITONBACKEND_Request>::add(request);
}

void free_response(TRITONBACKEND_Response* response) {
  for (auto& output : response->outputs) output.buffer.reset();
  response->channel.reset();
  RecentlyEnded<TRITONBACKEND_Response>::add(response);
}

}  // namespace tritonnb

TNB_API TRITONSERVER_Error* tnb_backend_open(
    const char* name, const char* path, const char* directory, const char* config, TRITONBACKEND_Backend** backend) {
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return error(TRITONSERVER_ERROR_NOT_FOUND, std::string("unable to load shared library: ") + dlerror());
  }
  if (dlsym(library, "TRITONBACKEND_ModelInstanceExecute") == nullptr) {
    dlclose(library);
    return error(
        TRITONSERVER_ERROR_NOT_FOUND,
        "unable to find required entrypoint 'TRITONBACKEND_ModelInstanceExecute' in shared library");
  }
  auto created = std::make_unique<TRITONBACKEND_Backend>();
  created->name = name;
  created->directory = directory;
  created->library = library;
  created->config.json = config;
  created->config.owned_by_server = true;
  if (auto* failure = call(library, "TRITONBACKEND_Initialize", created.get())) return failure;
  using Attributes = TRITONSERVER_Error*(TRITONBACKEND_Backend*, TRITONBACKEND_BackendAttribute*);
  if (auto* attributes = find<Attributes>(library, "TRITONBACKEND_GetBackendAttribute")) {
    TRITONSERVER_ErrorDelete(attributes(created.get(), &created->attributes));
  }
  *backend = created.release();
  return nullptr;
}

// The library stays loaded: threads that it started may still run, and other models may have opened it.
TNB_API TRITONSERVER_Error* tnb_backend_close(TRITONBACKEND_Backend* backend) {
  auto* failure = call(backend->library, "TRITONBACKEND_Finalize", backend);
  delete backend;
  return failure;
}

TNB_API bool tnb_backend_loads_in_parallel(TRITONBACKEND_Backend* backend) {
  return backend->attributes.parallel_instance_loading;
}

TNB_API uint64_t tnb_backend_preferred_count(TRITONBACKEND_Backend* backend, int32_t kind) {
  for (const auto& [preferred, count] : backend->attributes.preferred_groups) {
    if (preferred == kind) return count;
  }
  return 0;
}

TNB_API TRITONBACKEND_Model* tnb_model_new(
    TRITONBACKEND_Backend* backend, const char* name, uint64_t version, const char* directory, bool auto_complete) {
  auto* model = new TRITONBACKEND_Model;
  model->backend = backend;
  model->facts->name = name;
  model->version = version;
  model->directory = directory;
  model->auto_complete = auto_complete;
  return model;
}

// Also after the initialisation, with the validated configuration, but before the first instance: requests share the
// facts.
TNB_API void tnb_model_configure(TRITONBACKEND_Model* model, const char* config, bool decoupled) {
  model->config = config;
  model->facts->decoupled = decoupled;
  model->facts->states.clear();
}

TNB_API void tnb_model_add_state(TRITONBACKEND_Model* model, const char* name) {
  model->facts->states.push_back(name);
}

TNB_API TRITONSERVER_Error* tnb_model_initialize(TRITONBACKEND_Model* model) {
  return call(model->backend->library, "TRITONBACKEND_ModelInitialize", model);
}

TNB_API const char* tnb_model_config(TRITONBACKEND_Model* model) { return model->config.c_str(); }

// A backend that fails to initialise a model may have set its state; Triton finalises it in both cases, too.
TNB_API TRITONSERVER_Error* tnb_model_finalize(TRITONBACKEND_Model* model, bool initialized) {
  TRITONSERVER_Error* failure = nullptr;
  if (initialized || model->state != nullptr) {
    failure = call(model->backend->library, "TRITONBACKEND_ModelFinalize", model);
  }
  delete model;
  return failure;
}

TNB_API TRITONBACKEND_ModelInstance* tnb_instance_new(
    TRITONBACKEND_Model* model, const char* name, int32_t kind, int32_t device_id, bool passive, const char* policy) {
  auto* instance = new TRITONBACKEND_ModelInstance;
  instance->model = model;
  instance->name = name;
  instance->kind = static_cast<TRITONSERVER_InstanceGroupKind>(kind);
  instance->device_id = device_id;
  instance->passive = passive;
  instance->host_policy.json = policy;
  instance->host_policy.owned_by_server = true;
  return instance;
}

TNB_API TRITONSERVER_Error* tnb_instance_initialize(TRITONBACKEND_ModelInstance* instance) {
  return call(instance->model->backend->library, "TRITONBACKEND_ModelInstanceInitialize", instance);
}

TNB_API TRITONSERVER_Error* tnb_instance_execute(
    TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request** requests, uint32_t count,
    TnbBatchStatistics* statistics) {
  using Execute = TRITONSERVER_Error*(TRITONBACKEND_ModelInstance*, TRITONBACKEND_Request**, uint32_t);
  {
    std::lock_guard<std::mutex> lock(instance->mutex);
    instance->statistics = TnbBatchStatistics{};
  }
  auto* execute = find<Execute>(instance->model->backend->library, "TRITONBACKEND_ModelInstanceExecute");
  auto* failure = execute(instance, requests, count);
  std::lock_guard<std::mutex> lock(instance->mutex);
  *statistics = instance->statistics;
  return failure;
}

TNB_API bool tnb_instance_reports_readiness(TRITONBACKEND_ModelInstance* instance) {
  return dlsym(instance->model->backend->library, "TRITONBACKEND_ModelInstanceReady") != nullptr;
}

TNB_API TRITONSERVER_Error* tnb_instance_ready(TRITONBACKEND_ModelInstance* instance) {
  return call(instance->model->backend->library, "TRITONBACKEND_ModelInstanceReady", instance);
}

TNB_API uint32_t tnb_instance_memory(
    TRITONBACKEND_ModelInstance* instance, uint32_t capacity, int32_t* types, int64_t* devices, uint64_t* sizes) {
  uint32_t count = 0;
  for (const auto* usages : {&instance->memory, &instance->model->memory}) {
    for (const auto& usage : *usages) {
      if (count == capacity) return count;
      types[count] = usage.memory_type;
      devices[count] = usage.memory_type_id;
      sizes[count++] = usage.byte_size;
    }
  }
  return count;
}

TNB_API TRITONSERVER_Error* tnb_instance_finalize(TRITONBACKEND_ModelInstance* instance, bool initialized) {
  TRITONSERVER_Error* failure = nullptr;
  if (initialized || instance->state != nullptr) {
    failure = call(instance->model->backend->library, "TRITONBACKEND_ModelInstanceFinalize", instance);
  }
  delete instance;
  return failure;
}

TNB_API TRITONBACKEND_Request* tnb_request_new(
    TRITONBACKEND_Model* model, uint64_t token, const char* id, uint64_t correlation_id, const char* correlation_text,
    uint32_t flags, uint64_t timeout_us) {
  auto* request = new TRITONBACKEND_Request;
  request->facts = model->facts;
  request->id = id;
  request->correlation_id = correlation_id;
  request->has_correlation_text = correlation_text != nullptr;
  if (correlation_text != nullptr) request->correlation_text = correlation_text;
  request->flags = flags;
  request->timeout_us = timeout_us;
  request->channel = std::make_shared<Channel>(token, model->facts->decoupled, model->events);
  return request;
}

TNB_API void tnb_request_add_input(
    TRITONBACKEND_Request* request, const char* name, int32_t datatype, const int64_t* shape, uint32_t dims_count,
    const void* data, uint64_t byte_size) {
  request->inputs.emplace_back();
  auto& input = request->inputs.back();
  input.request = request;
  input.name = name;
  input.datatype = static_cast<TRITONSERVER_DataType>(datatype);
  input.shape.assign(shape, shape + dims_count);
  input.data = data;
  input.byte_size = input.attributes.byte_size = byte_size;
}

TNB_API void tnb_request_add_output(TRITONBACKEND_Request* request, const char* name) {
  request->outputs.push_back(name);
}

TNB_API void tnb_request_add_parameter(
    TRITONBACKEND_Request* request, const char* name, int32_t type, int64_t integer, double number, const char* text) {
  Parameter parameter;
  parameter.name = name;
  parameter.type = type;
  parameter.integer = integer;
  parameter.boolean = integer != 0;
  parameter.number = number;
  if (text != nullptr) parameter.text = text;
  request->parameters.push_back(std::move(parameter));
}

// After a failed execution the request belongs to the server again, whatever the backend did with it.
TNB_API void tnb_request_collect(TRITONBACKEND_Request* request, bool failed, TnbOutcome* outcome) {
  auto& channel = *request->channel;
  bool taken_back = false;
  {
    std::lock_guard<std::mutex> lock(channel.mutex);
    request->executed = true;
    if (failed && !request->ended.exchange(true)) {
      taken_back = true;
      --channel.producers;
    }
    outcome->released = request->ended;
    outcome->rescheduled = channel.rescheduled;
    outcome->reported = request->reported;
    outcome->response = channel.collected;
    channel.collected = nullptr;
    outcome->final_sent = channel.final_sent;
    outcome->pending = !channel.final_sent && channel.producers > 0 && !failed;
    channel.streaming = true;
    if (failed) channel.final_sent = true;  // the server answers
  }
  for (const auto& state : request->states) {
    if (state.updated) {
      request->updated_states.push_back(
          {state.name.c_str(), state.datatype, static_cast<uint32_t>(state.shape.size()), state.shape.data(),
           state.buffer.get(), state.attributes.byte_size});
    }
  }
  outcome->state_count = static_cast<uint32_t>(request->updated_states.size());
  outcome->states = request->updated_states.data();
  if (taken_back) drop_request(request);
}

TNB_API void tnb_request_finish(TRITONBACKEND_Request* request) { drop_request(request); }

TNB_API const TnbResponse* tnb_response_view(TRITONBACKEND_Response* response) { return &response->view; }

TNB_API void tnb_response_free(TRITONBACKEND_Response* response) { free_response(response); }
