// What a backend can ask about itself, its models and their instances, and the memory manager.

#include "objects.h"

using namespace tritonnb;

namespace {

TRITONSERVER_Error* set_memory(
    std::vector<TRITONSERVER_BufferAttributes>& memory, TRITONSERVER_BufferAttributes** usage, uint32_t size) {
  memory.clear();
  for (uint32_t index = 0; index < size; ++index) memory.push_back(*usage[index]);
  return nullptr;
}

TRITONSERVER_Error* out_of_bounds(uint32_t index, const char* what) {
  return error(
      TRITONSERVER_ERROR_INVALID_ARG,
      "out of bounds index " + std::to_string(index) + ": instance is configured with 0 " + what);
}

}  // namespace

extern "C" {

TRITONSERVER_Error* TRITONBACKEND_ApiVersion(uint32_t* major, uint32_t* minor) {
  *major = TRITONBACKEND_API_VERSION_MAJOR;
  *minor = TRITONBACKEND_API_VERSION_MINOR;
  return nullptr;
}

// Pinned memory is ordinary memory, which every function accepts in its place.
TRITONSERVER_Error* TRITONBACKEND_MemoryManagerAllocate(
    TRITONBACKEND_MemoryManager* manager, void** buffer, const TRITONSERVER_MemoryType memory_type,
    const int64_t memory_type_id, const uint64_t byte_size) {
  (void)memory_type_id;
  if (memory_type == TRITONSERVER_MEMORY_GPU) {
    return error(TRITONSERVER_ERROR_UNSUPPORTED, "GPU memory allocation not supported");
  }
  auto memory = allocate(byte_size);
  if (memory == nullptr) {
    return error(TRITONSERVER_ERROR_UNAVAILABLE, "failed to allocate " + std::to_string(byte_size) + " bytes");
  }
  *buffer = memory.get();
  std::lock_guard<std::mutex> lock(manager->mutex);
  manager->allocated[*buffer] = std::move(memory);
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_MemoryManagerFree(
    TRITONBACKEND_MemoryManager* manager, void* buffer, const TRITONSERVER_MemoryType memory_type,
    const int64_t memory_type_id) {
  (void)memory_type, (void)memory_type_id;
  std::lock_guard<std::mutex> lock(manager->mutex);
  if (manager->allocated.erase(buffer) == 0) return misuse(__func__, "the buffer is not allocated");
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_BackendName(TRITONBACKEND_Backend* backend, const char** name) {
  *name = backend->name.c_str();
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_BackendConfig(TRITONBACKEND_Backend* backend, TRITONSERVER_Message** backend_config) {
  *backend_config = &backend->config;
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_BackendExecutionPolicy(
    TRITONBACKEND_Backend* backend, TRITONBACKEND_ExecutionPolicy* policy) {
  *policy = backend->policy;
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_BackendSetExecutionPolicy(
    TRITONBACKEND_Backend* backend, TRITONBACKEND_ExecutionPolicy policy) {
  backend->policy = policy;
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_BackendArtifacts(
    TRITONBACKEND_Backend* backend, TRITONBACKEND_ArtifactType* artifact_type, const char** location) {
  *artifact_type = TRITONBACKEND_ARTIFACT_FILESYSTEM;
  *location = backend->directory.c_str();
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_BackendMemoryManager(
    TRITONBACKEND_Backend* backend, TRITONBACKEND_MemoryManager** manager) {
  (void)backend;
  static auto* shared = new TRITONBACKEND_MemoryManager;
  *manager = shared;
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_BackendState(TRITONBACKEND_Backend* backend, void** state) {
  *state = backend->state;
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_BackendSetState(TRITONBACKEND_Backend* backend, void* state) {
  backend->state = state;
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_BackendAttributeAddPreferredInstanceGroup(
    TRITONBACKEND_BackendAttribute* backend_attributes, const TRITONSERVER_InstanceGroupKind kind, const uint64_t count,
    const uint64_t* device_ids, const uint64_t id_count) {
  (void)device_ids, (void)id_count;
  backend_attributes->preferred_groups.emplace_back(kind, count);
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_BackendAttributeSetParallelModelInstanceLoading(
    TRITONBACKEND_BackendAttribute* backend_attributes, bool enabled) {
  backend_attributes->parallel_instance_loading = enabled;
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_ModelName(TRITONBACKEND_Model* model, const char** name) {
  *name = model->facts->name.c_str();
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_ModelVersion(TRITONBACKEND_Model* model, uint64_t* version) {
  *version = model->version;
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_ModelRepository(
    TRITONBACKEND_Model* model, TRITONBACKEND_ArtifactType* artifact_type, const char** location) {
  *artifact_type = TRITONBACKEND_ARTIFACT_FILESYSTEM;
  *location = model->directory.c_str();
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_ModelConfig(
    TRITONBACKEND_Model* model, const uint32_t config_version, TRITONSERVER_Message** model_config) {
  if (config_version != 1) {
    return error(
        TRITONSERVER_ERROR_INVALID_ARG, "model configuration version " + std::to_string(config_version) +
                                            " not supported, supported versions are: 1");
  }
  return TRITONSERVER_MessageNewFromSerializedJson(model_config, model->config.data(), model->config.size());
}

TRITONSERVER_Error* TRITONBACKEND_ModelAutoCompleteConfig(TRITONBACKEND_Model* model, bool* auto_complete_config) {
  *auto_complete_config = model->auto_complete;
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_ModelSetConfig(
    TRITONBACKEND_Model* model, const uint32_t config_version, TRITONSERVER_Message* model_config) {
  TNB_CHECK(model_config, "message", "deleted");
  if (config_version != 1) return error(TRITONSERVER_ERROR_INVALID_ARG, "expected model configuration version 1");
  if (model->auto_complete) model->config = model_config->json;
  return nullptr;
}

// The server itself is not accessible to backends here; the functions that take it are unsupported.
TRITONSERVER_Error* TRITONBACKEND_ModelServer(TRITONBACKEND_Model* model, TRITONSERVER_Server** server) {
  *server = reinterpret_cast<TRITONSERVER_Server*>(model->backend);
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_ModelBackend(TRITONBACKEND_Model* model, TRITONBACKEND_Backend** backend) {
  *backend = model->backend;
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_ModelState(TRITONBACKEND_Model* model, void** state) {
  *state = model->state;
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_ModelSetState(TRITONBACKEND_Model* model, void* state) {
  model->state = state;
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_ModelReportMemoryUsage(
    TRITONBACKEND_Model* model, TRITONSERVER_BufferAttributes** usage, uint32_t usage_size) {
  return set_memory(model->memory, usage, usage_size);
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceName(TRITONBACKEND_ModelInstance* instance, const char** name) {
  *name = instance->name.c_str();
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceKind(
    TRITONBACKEND_ModelInstance* instance, TRITONSERVER_InstanceGroupKind* kind) {
  *kind = instance->kind;
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceDeviceId(TRITONBACKEND_ModelInstance* instance, int32_t* device_id) {
  *device_id = instance->device_id;
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceHostPolicy(
    TRITONBACKEND_ModelInstance* instance, TRITONSERVER_Message** host_policy) {
  *host_policy = &instance->host_policy;
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceIsPassive(TRITONBACKEND_ModelInstance* instance, bool* is_passive) {
  *is_passive = instance->passive;
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceProfileCount(TRITONBACKEND_ModelInstance* instance, uint32_t* count) {
  (void)instance;
  *count = 0;
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceProfileName(
    TRITONBACKEND_ModelInstance* instance, const uint32_t index, const char** profile_name) {
  (void)instance;
  *profile_name = nullptr;
  return out_of_bounds(index, "profiles");
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceSecondaryDeviceCount(
    TRITONBACKEND_ModelInstance* instance, uint32_t* count) {
  (void)instance;
  *count = 0;
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceSecondaryDeviceProperties(
    TRITONBACKEND_ModelInstance* instance, uint32_t index, const char** kind, int64_t* id) {
  (void)instance, (void)kind, (void)id;
  return out_of_bounds(index, "secondary devices");
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceModel(
    TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Model** model) {
  *model = instance->model;
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceState(TRITONBACKEND_ModelInstance* instance, void** state) {
  *state = instance->state;
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceSetState(TRITONBACKEND_ModelInstance* instance, void* state) {
  instance->state = state;
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceReportMemoryUsage(
    TRITONBACKEND_ModelInstance* instance, TRITONSERVER_BufferAttributes** usage, uint32_t usage_size) {
  return set_memory(instance->memory, usage, usage_size);
}

}  // extern "C"
