// A small backend that uses every part of the interface that tritonnb implements; the tests compile it.
//
// The parameter MODE of a model selects what it does with a request. Most modes answer OUT = 2 * IN.

#include <signal.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "triton/core/tritonbackend.h"

// Of the functions that are not supported, two that a backend could call.
extern "C" TRITONSERVER_Error* TRITONSERVER_ServerIsLive(TRITONSERVER_Server* server, bool* live);
extern "C" TRITONSERVER_Error* TRITONSERVER_MetricFamilyNew(void* family, int kind, const char* name, const char* text);

#define CHECK(CALL)                                                                                                    \
  do {                                                                                                                \
    if (TRITONSERVER_Error* check_error = (CALL)) return check_error;                                                  \
  } while (false)

namespace {

using Error = TRITONSERVER_Error;
using Request = TRITONBACKEND_Request;
using Response = TRITONBACKEND_Response;

uint64_t now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

struct Model {
  std::string mode;
  std::string problems;  // what the server said about misuse
  std::atomic<int> executions{0};
  std::atomic<int> threads{0};
  std::atomic<bool> ready{true};
};

// The value of a parameter of the model configuration; empty if there is none.
std::string parameter(const std::string& config, const std::string& name) {
  const std::string key = "\"" + name + "\":{\"string_value\":\"";
  const auto begin = config.find(key);
  if (begin == std::string::npos) return "";
  const auto value = begin + key.size();
  return config.substr(value, config.find('"', value) - value);
}

Error* read_config(TRITONBACKEND_Model* model, std::string* config) {
  TRITONSERVER_Message* message;
  CHECK(TRITONBACKEND_ModelConfig(model, 1, &message));
  const char* text;
  size_t size;
  CHECK(TRITONSERVER_MessageSerializeToJson(message, &text, &size));
  config->assign(text, size);
  return TRITONSERVER_MessageDelete(message);
}

void replace(std::string& text, const std::string& from, const std::string& to) {
  const auto at = text.find(from);
  if (at != std::string::npos) text.replace(at, from.size(), to);
}

Error* complete_config(TRITONBACKEND_Model* model, std::string config) {
  replace(config, "\"input\":[]", R"("input":[{"name":"IN","data_type":"TYPE_INT32","dims":[-1]}])");
  replace(config, "\"output\":[]", R"("output":[{"name":"OUT","data_type":"TYPE_INT32","dims":[-1]}])");
  replace(config, "\"max_batch_size\":0", "\"max_batch_size\":8");
  TRITONSERVER_Message* message;
  CHECK(TRITONSERVER_MessageNewFromSerializedJson(&message, config.data(), config.size()));
  CHECK(TRITONBACKEND_ModelSetConfig(model, 1, message));
  return TRITONSERVER_MessageDelete(message);
}

Error* read_input(Request* request, const char* name, std::vector<int32_t>* values, std::vector<int64_t>* dims) {
  TRITONBACKEND_Input* input;
  CHECK(TRITONBACKEND_RequestInput(request, name, &input));
  const int64_t* shape;
  uint32_t dims_count, buffers;
  uint64_t size;
  CHECK(TRITONBACKEND_InputProperties(input, nullptr, nullptr, &shape, &dims_count, &size, &buffers));
  const void* data;
  TRITONSERVER_MemoryType type;
  int64_t id;
  CHECK(TRITONBACKEND_InputBuffer(input, 0, &data, &size, &type, &id));
  values->resize(size / sizeof(int32_t));
  if (size != 0) std::memcpy(values->data(), data, size);
  dims->assign(shape, shape + dims_count);
  return nullptr;
}

Error* add_output(Response* response, const std::vector<int32_t>& values, const std::vector<int64_t>& dims) {
  TRITONBACKEND_Output* output;
  CHECK(TRITONBACKEND_ResponseOutput(response, &output, "OUT", TRITONSERVER_TYPE_INT32, dims.data(), dims.size()));
  void* buffer;
  TRITONSERVER_MemoryType type = TRITONSERVER_MEMORY_CPU;
  int64_t id = 0;
  const auto size = values.size() * sizeof(int32_t);
  CHECK(TRITONBACKEND_OutputBuffer(output, &buffer, size, &type, &id));
  if (size != 0) std::memcpy(buffer, values.data(), size);
  return nullptr;
}

Error* release(Request* request) { return TRITONBACKEND_RequestRelease(request, TRITONSERVER_REQUEST_RELEASE_ALL); }

Error* answer(Response* response, Request* request, int32_t factor = 2) {
  std::vector<int32_t> values;
  std::vector<int64_t> dims;
  CHECK(read_input(request, "IN", &values, &dims));
  for (auto& value : values) value *= factor;
  CHECK(add_output(response, values, dims));
  return TRITONBACKEND_ResponseSend(response, TRITONSERVER_RESPONSE_COMPLETE_FINAL, nullptr);
}

Error* answer(Request* request) {
  Response* response;
  CHECK(TRITONBACKEND_ResponseNew(&response, request));
  return answer(response, request);
}

// --- modes: each takes a request, and answers and releases it

Error* doubled(Model*, TRITONBACKEND_ModelInstance* instance, Request* request) {
  std::vector<int32_t> values;
  std::vector<int64_t> dims;
  CHECK(read_input(request, "IN", &values, &dims));
  const bool is_valid = values.empty() || values[0] >= 0;
  Response* response;
  CHECK(TRITONBACKEND_ResponseNew(&response, request));
  if (is_valid) {
    CHECK(answer(response, request));
  } else {
    Error* error = TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INVALID_ARG, "IN: expected numbers >= 0");
    CHECK(TRITONBACKEND_ResponseSend(response, TRITONSERVER_RESPONSE_COMPLETE_FINAL, error));
    TRITONSERVER_ErrorDelete(error);
  }
  CHECK(TRITONBACKEND_ModelInstanceReportStatistics(instance, request, is_valid, now(), now(), now(), now()));
  return release(request);
}

// Response parameters: those of the request, and what else is known about it.
Error* echoed(Model*, TRITONBACKEND_ModelInstance*, Request* request) {
  Response* response;
  CHECK(TRITONBACKEND_ResponseNew(&response, request));
  uint32_t count;
  CHECK(TRITONBACKEND_RequestParameterCount(request, &count));
  for (uint32_t index = 0; index < count; ++index) {
    const char* key;
    const void* value;
    TRITONSERVER_ParameterType type;
    CHECK(TRITONBACKEND_RequestParameter(request, index, &key, &type, &value));
    if (type == TRITONSERVER_PARAMETER_STRING) {
      CHECK(TRITONBACKEND_ResponseSetStringParameter(response, key, static_cast<const char*>(value)));
    } else if (type == TRITONSERVER_PARAMETER_INT) {
      CHECK(TRITONBACKEND_ResponseSetIntParameter(response, key, *static_cast<const int64_t*>(value)));
    } else if (type == TRITONSERVER_PARAMETER_BOOL) {
      CHECK(TRITONBACKEND_ResponseSetBoolParameter(response, key, *static_cast<const bool*>(value)));
    } else {
      CHECK(TRITONBACKEND_ResponseSetDoubleParameter(response, key, *static_cast<const double*>(value)));
    }
  }
  const char* id;
  CHECK(TRITONBACKEND_RequestId(request, &id));
  CHECK(TRITONBACKEND_ResponseSetStringParameter(response, "id", id));
  uint32_t outputs;
  CHECK(TRITONBACKEND_RequestOutputCount(request, &outputs));
  CHECK(TRITONBACKEND_ResponseSetIntParameter(response, "outputs", outputs));
  CHECK(answer(response, request));
  return release(request);
}

// Decoupled: IN[0] responses from a thread, after the request was released.
Error* repeated(Model* model, TRITONBACKEND_ModelInstance*, Request* request) {
  std::vector<int32_t> values;
  std::vector<int64_t> dims;
  CHECK(read_input(request, "IN", &values, &dims));
  TRITONBACKEND_ResponseFactory* factory;
  CHECK(TRITONBACKEND_ResponseFactoryNew(&factory, request));
  ++model->threads;
  std::thread([=] {
    const std::vector<int64_t> one(dims.size(), 1);
    for (int32_t index = 0; index < values[0]; ++index) {
      bool is_cancelled = false;
      TRITONBACKEND_ResponseFactoryIsCancelled(factory, &is_cancelled);
      if (is_cancelled) break;
      Response* response;
      TRITONBACKEND_ResponseNewFromFactory(&response, factory);
      add_output(response, {index}, one);
      TRITONBACKEND_ResponseSend(response, 0, nullptr);
      std::this_thread::sleep_for(std::chrono::milliseconds(values.size() > 1 ? values[1] : 0));
    }
    TRITONBACKEND_ResponseFactorySendFlags(factory, TRITONSERVER_RESPONSE_COMPLETE_FINAL);
    TRITONBACKEND_ResponseFactoryDelete(factory);
    --model->threads;
  }).detach();
  return release(request);
}

// Not decoupled, but answered and released after the execution.
Error* late(Model* model, TRITONBACKEND_ModelInstance*, Request* request) {
  ++model->threads;
  std::thread([=] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    answer(request);
    release(request);
    --model->threads;
  }).detach();
  return nullptr;
}

// Implicit state: the sum of the inputs of a sequence.
Error* accumulated(Model*, TRITONBACKEND_ModelInstance*, Request* request) {
  std::vector<int32_t> values, sum;
  std::vector<int64_t> dims, state_dims;
  CHECK(read_input(request, "IN", &values, &dims));
  CHECK(read_input(request, "SUM_IN", &sum, &state_dims));
  for (const auto value : values) sum[0] += value;
  TRITONBACKEND_State* state;
  CHECK(TRITONBACKEND_StateNew(&state, request, "SUM_OUT", TRITONSERVER_TYPE_INT32, state_dims.data(), state_dims.size()));
  void* buffer;
  TRITONSERVER_MemoryType type = TRITONSERVER_MEMORY_CPU;
  int64_t id = 0;
  CHECK(TRITONBACKEND_StateBuffer(state, &buffer, sizeof(int32_t), &type, &id));
  std::memcpy(buffer, sum.data(), sizeof(int32_t));
  CHECK(TRITONBACKEND_StateUpdate(state));
  Response* response;
  CHECK(TRITONBACKEND_ResponseNew(&response, request));
  CHECK(add_output(response, sum, state_dims));
  CHECK(TRITONBACKEND_ResponseSend(response, TRITONSERVER_RESPONSE_COMPLETE_FINAL, nullptr));
  return release(request);
}

// Iterative sequence: answered in the third execution.
Error* rescheduled(Model* model, TRITONBACKEND_ModelInstance*, Request* request) {
  if (++model->executions % 3 != 0) {
    return TRITONBACKEND_RequestRelease(request, TRITONSERVER_REQUEST_RELEASE_RESCHEDULE);
  }
  CHECK(answer(request));
  return release(request);
}

void note(Model* model, Error* error) {
  model->problems += error == nullptr ? "nothing\n" : std::string(TRITONSERVER_ErrorMessage(error)) + "\n";
  TRITONSERVER_ErrorDelete(error);
}

// Every rule of ownership is violated; what the server says is in the parameters of the next response.
Error* misused(Model* model, TRITONBACKEND_ModelInstance* instance, Request* request) {
  Response* response;
  CHECK(TRITONBACKEND_ResponseNew(&response, request));
  CHECK(TRITONBACKEND_ResponseSetStringParameter(response, "problems", model->problems.c_str()));
  model->problems.clear();
  TRITONBACKEND_Input* input;
  CHECK(TRITONBACKEND_RequestInput(request, "IN", &input));
  TRITONBACKEND_ResponseFactory* factory;
  CHECK(TRITONBACKEND_ResponseFactoryNew(&factory, request));
  Response* second;
  CHECK(TRITONBACKEND_ResponseNew(&second, request));
  CHECK(answer(response, request));
  note(model, TRITONBACKEND_ResponseSend(response, TRITONSERVER_RESPONSE_COMPLETE_FINAL, nullptr));
  note(model, TRITONBACKEND_ResponseSend(second, TRITONSERVER_RESPONSE_COMPLETE_FINAL, nullptr));
  note(model, TRITONBACKEND_ResponseDelete(second));
  note(model, TRITONBACKEND_RequestRelease(request, 0));
  CHECK(release(request));
  note(model, release(request));
  const void* data;
  uint64_t size;
  TRITONSERVER_MemoryType type;
  int64_t id;
  note(model, TRITONBACKEND_InputBuffer(input, 0, &data, &size, &type, &id));
  note(model, TRITONBACKEND_ResponseNew(&response, request));
  CHECK(TRITONBACKEND_ResponseFactoryDelete(factory));
  note(model, TRITONBACKEND_ResponseFactorySendFlags(factory, 0));
  TRITONBACKEND_Model* handle;
  TRITONBACKEND_Backend* backend;
  TRITONBACKEND_MemoryManager* manager;
  CHECK(TRITONBACKEND_ModelInstanceModel(instance, &handle));
  CHECK(TRITONBACKEND_ModelBackend(handle, &backend));
  CHECK(TRITONBACKEND_BackendMemoryManager(backend, &manager));
  void* memory;
  CHECK(TRITONBACKEND_MemoryManagerAllocate(manager, &memory, TRITONSERVER_MEMORY_CPU_PINNED, 0, 100));
  CHECK(TRITONBACKEND_MemoryManagerFree(manager, memory, TRITONSERVER_MEMORY_CPU_PINNED, 0));
  note(model, TRITONBACKEND_MemoryManagerFree(manager, memory, TRITONSERVER_MEMORY_CPU_PINNED, 0));
  note(model, TRITONBACKEND_MemoryManagerAllocate(manager, &memory, TRITONSERVER_MEMORY_GPU, 0, 100));
  TRITONSERVER_Message* config;
  CHECK(TRITONBACKEND_BackendConfig(backend, &config));
  note(model, TRITONSERVER_MessageDelete(config));
  return nullptr;
}

Error* unsupported(Model*, TRITONBACKEND_ModelInstance*, Request* request) {
  bool live;
  Response* response;
  CHECK(TRITONBACKEND_ResponseNew(&response, request));
  Error* error = TRITONSERVER_ServerIsLive(nullptr, &live);
  CHECK(TRITONBACKEND_ResponseSend(response, TRITONSERVER_RESPONSE_COMPLETE_FINAL, error));
  TRITONSERVER_ErrorDelete(error);
  return release(request);
}

// The output has another size than its shape says.
Error* truncated(Model*, TRITONBACKEND_ModelInstance*, Request* request) {
  Response* response;
  CHECK(TRITONBACKEND_ResponseNew(&response, request));
  CHECK(add_output(response, {1, 2}, {1, 3}));
  CHECK(TRITONBACKEND_ResponseSend(response, TRITONSERVER_RESPONSE_COMPLETE_FINAL, nullptr));
  return release(request);
}

Error* dropped(Model*, TRITONBACKEND_ModelInstance*, Request* request) { return release(request); }

Error* failed(Model*, TRITONBACKEND_ModelInstance*, Request*) {
  return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_UNAVAILABLE, "the execution failed");
}

Error* crashed(Model*, TRITONBACKEND_ModelInstance*, Request* request) {
  std::vector<int32_t> values;
  std::vector<int64_t> dims;
  CHECK(read_input(request, "IN", &values, &dims));
  if (values[0] < 0) raise(SIGSEGV);
  CHECK(answer(request));
  return release(request);
}

Error* not_ready(Model* model, TRITONBACKEND_ModelInstance*, Request* request) {
  model->ready = false;
  CHECK(answer(request));
  return release(request);
}

using Mode = Error*(Model*, TRITONBACKEND_ModelInstance*, Request*);
const std::map<std::string, Mode*> kModes = {
    {"", doubled},          {"echo", echoed},         {"repeat", repeated},  {"late", late},
    {"sum", accumulated},   {"again", rescheduled},   {"misuse", misused},   {"unsupported", unsupported},
    {"truncate", truncated}, {"drop", dropped},       {"fail", failed},      {"not_ready", not_ready},
    {"crash", crashed},
};

Model* state_of(TRITONBACKEND_ModelInstance* instance) {
  TRITONBACKEND_Model* model;
  void* state = nullptr;
  TRITONBACKEND_ModelInstanceModel(instance, &model);
  TRITONBACKEND_ModelState(model, &state);
  return static_cast<Model*>(state);
}

}  // namespace

extern "C" {

Error* TRITONBACKEND_Initialize(TRITONBACKEND_Backend* backend) {
  uint32_t major, minor;
  CHECK(TRITONBACKEND_ApiVersion(&major, &minor));
  if (major != TRITONBACKEND_API_VERSION_MAJOR || minor < TRITONBACKEND_API_VERSION_MINOR) {
    return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_UNSUPPORTED, "the server has another version of the interface");
  }
  return TRITONSERVER_LogMessage(TRITONSERVER_LOG_INFO, __FILE__, __LINE__, "the probe is initialised: 100 %");
}

Error* TRITONBACKEND_Finalize(TRITONBACKEND_Backend*) {
  return TRITONSERVER_LogMessage(TRITONSERVER_LOG_INFO, __FILE__, __LINE__, "the probe is finalised");
}

Error* TRITONBACKEND_GetBackendAttribute(TRITONBACKEND_Backend*, TRITONBACKEND_BackendAttribute* attributes) {
  CHECK(TRITONBACKEND_BackendAttributeAddPreferredInstanceGroup(
      attributes, TRITONSERVER_INSTANCEGROUPKIND_CPU, 2, nullptr, 0));
  return TRITONBACKEND_BackendAttributeSetParallelModelInstanceLoading(attributes, true);
}

Error* TRITONBACKEND_ModelInitialize(TRITONBACKEND_Model* handle) {
  CHECK(TRITONSERVER_LogMessage(TRITONSERVER_LOG_INFO, __FILE__, __LINE__, "the model is initialised"));
  std::string config;
  CHECK(read_config(handle, &config));
  if (parameter(config, "MODE") == "refuse") {
    return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INVALID_ARG, "the model is refused");
  }
  bool completes;
  CHECK(TRITONBACKEND_ModelAutoCompleteConfig(handle, &completes));
  if (completes && config.find("\"input\":[]") != std::string::npos) CHECK(complete_config(handle, config));
  auto* model = new Model;
  model->mode = parameter(config, "MODE");
  return TRITONBACKEND_ModelSetState(handle, model);
}

Error* TRITONBACKEND_ModelFinalize(TRITONBACKEND_Model* handle) {
  CHECK(TRITONSERVER_LogMessage(TRITONSERVER_LOG_INFO, __FILE__, __LINE__, "the model is finalised"));
  void* state;
  CHECK(TRITONBACKEND_ModelState(handle, &state));
  delete static_cast<Model*>(state);
  return nullptr;
}

Error* TRITONBACKEND_ModelInstanceInitialize(TRITONBACKEND_ModelInstance* instance) {
  TRITONBACKEND_Model* model;
  CHECK(TRITONBACKEND_ModelInstanceModel(instance, &model));
  std::string config;
  CHECK(read_config(model, &config));
  const auto name = config.substr(config.find("\"instance_group\":[{\"name\":"), 36);
  CHECK(TRITONSERVER_LogMessage(TRITONSERVER_LOG_INFO, __FILE__, __LINE__, name.c_str()));
  TRITONSERVER_BufferAttributes* usage;
  CHECK(TRITONSERVER_BufferAttributesNew(&usage));
  CHECK(TRITONSERVER_BufferAttributesSetByteSize(usage, 1000));
  CHECK(TRITONSERVER_BufferAttributesSetMemoryType(usage, TRITONSERVER_MEMORY_CPU));
  CHECK(TRITONBACKEND_ModelInstanceReportMemoryUsage(instance, &usage, 1));
  return TRITONSERVER_BufferAttributesDelete(usage);
}

Error* TRITONBACKEND_ModelInstanceFinalize(TRITONBACKEND_ModelInstance* instance) {
  while (state_of(instance)->threads > 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return nullptr;
}

Error* TRITONBACKEND_ModelInstanceReady(TRITONBACKEND_ModelInstance* instance) {
  if (state_of(instance)->ready) return nullptr;
  return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_UNAVAILABLE, "the probe is not ready");
}

Error* TRITONBACKEND_ModelInstanceExecute(TRITONBACKEND_ModelInstance* instance, Request** requests, const uint32_t count) {
  const auto start = now();
  auto* model = state_of(instance);
  const auto mode = kModes.at(model->mode);
  for (uint32_t index = 0; index < count; ++index) CHECK(mode(model, instance, requests[index]));
  // The whole time is computation, except for 1 ns before it and 2 ns after it.
  return TRITONBACKEND_ModelInstanceReportBatchStatistics(instance, count, start, start + 1, start + 11, start + 13);
}

}  // extern "C"
