// Requests, their inputs, and the implicit states of their sequences.

#include "objects.h"

using namespace tritonnb;

namespace {

std::string prefix(const TRITONBACKEND_Request* request) {
  return "[request id: " + (request->id.empty() ? std::string("<id_unknown>") : request->id) + "] ";
}

TRITONSERVER_Error* out_of_bounds(
    const TRITONBACKEND_Request* request, uint32_t index, size_t count, const char* what) {
  return error(
      TRITONSERVER_ERROR_INVALID_ARG, prefix(request) + "out of bounds index " + std::to_string(index) +
                                          ": request has " + std::to_string(count) + " " + what);
}

const void* value_of(const Parameter& parameter) {
  switch (parameter.type) {
    case TRITONSERVER_PARAMETER_INT: return &parameter.integer;
    case TRITONSERVER_PARAMETER_BOOL: return &parameter.boolean;
    case TRITONSERVER_PARAMETER_DOUBLE: return &parameter.number;
    default: return parameter.text.c_str();
  }
}

template <typename T>
void assign(T* target, T value) {
  if (target != nullptr) *target = value;
}

}  // namespace

// An input or a state can be used as long as its request.
#define CHECK_PART(PART, WHAT)                                                                                \
  do {                                                                                                       \
    if ((PART) == nullptr) return error(TRITONSERVER_ERROR_INVALID_ARG, WHAT " was nullptr");                 \
    TNB_CHECK_REQUEST((PART)->request);                                                                      \
  } while (false)

extern "C" {

TRITONSERVER_Error* TRITONBACKEND_InputProperties(
    TRITONBACKEND_Input* input, const char** name, TRITONSERVER_DataType* datatype, const int64_t** shape,
    uint32_t* dims_count, uint64_t* byte_size, uint32_t* buffer_count) {
  CHECK_PART(input, "input");
  assign(name, input->name.c_str());
  assign(datatype, input->datatype);
  assign(shape, static_cast<const int64_t*>(input->shape.data()));
  assign(dims_count, static_cast<uint32_t>(input->shape.size()));
  assign(byte_size, input->byte_size);
  assign(buffer_count, 1u);
  return nullptr;
}

// There is one copy of an input for all host policies.
TRITONSERVER_Error* TRITONBACKEND_InputPropertiesForHostPolicy(
    TRITONBACKEND_Input* input, const char* host_policy_name, const char** name, TRITONSERVER_DataType* datatype,
    const int64_t** shape, uint32_t* dims_count, uint64_t* byte_size, uint32_t* buffer_count) {
  (void)host_policy_name;
  return TRITONBACKEND_InputProperties(input, name, datatype, shape, dims_count, byte_size, buffer_count);
}

TRITONSERVER_Error* TRITONBACKEND_InputBuffer(
    TRITONBACKEND_Input* input, const uint32_t index, const void** buffer, uint64_t* buffer_byte_size,
    TRITONSERVER_MemoryType* memory_type, int64_t* memory_type_id) {
  *buffer = nullptr;
  CHECK_PART(input, "input");
  if (index != 0) return out_of_bounds(input->request, index, 1, ("buffers of input '" + input->name + "'").c_str());
  *buffer = input->data;
  *buffer_byte_size = input->byte_size;
  *memory_type = TRITONSERVER_MEMORY_CPU;
  *memory_type_id = 0;
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_InputBufferForHostPolicy(
    TRITONBACKEND_Input* input, const char* host_policy_name, const uint32_t index, const void** buffer,
    uint64_t* buffer_byte_size, TRITONSERVER_MemoryType* memory_type, int64_t* memory_type_id) {
  (void)host_policy_name;
  return TRITONBACKEND_InputBuffer(input, index, buffer, buffer_byte_size, memory_type, memory_type_id);
}

TRITONSERVER_Error* TRITONBACKEND_InputBufferAttributes(
    TRITONBACKEND_Input* input, const uint32_t index, const void** buffer,
    TRITONSERVER_BufferAttributes** buffer_attributes) {
  uint64_t size;
  TRITONSERVER_MemoryType type;
  int64_t id;
  if (auto* failure = TRITONBACKEND_InputBuffer(input, index, buffer, &size, &type, &id)) return failure;
  *buffer_attributes = &input->attributes;
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_RequestId(TRITONBACKEND_Request* request, const char** id) {
  TNB_CHECK_REQUEST(request);
  *id = request->id.c_str();
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_RequestIsCancelled(TRITONBACKEND_Request* request, bool* is_cancelled) {
  TNB_CHECK_REQUEST(request);
  *is_cancelled = request->channel->cancelled;
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_RequestCorrelationId(TRITONBACKEND_Request* request, uint64_t* id) {
  TNB_CHECK_REQUEST(request);
  if (request->has_correlation_text) {
    return error(
        TRITONSERVER_ERROR_INVALID_ARG, prefix(request) + "correlation ID in request is not an unsigned int");
  }
  *id = request->correlation_id;
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_RequestCorrelationIdString(TRITONBACKEND_Request* request, const char** id) {
  TNB_CHECK_REQUEST(request);
  if (!request->has_correlation_text) {
    return error(TRITONSERVER_ERROR_INVALID_ARG, prefix(request) + "correlation ID in request is not a string");
  }
  *id = request->correlation_text.c_str();
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_RequestFlags(TRITONBACKEND_Request* request, uint32_t* flags) {
  TNB_CHECK_REQUEST(request);
  *flags = request->flags;
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_InferenceRequestTimeoutMicroseconds(
    TRITONBACKEND_Request* request, uint64_t* timeout) {
  TNB_CHECK_REQUEST(request);
  *timeout = request->timeout_us;
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_RequestParameterCount(TRITONBACKEND_Request* request, uint32_t* count) {
  TNB_CHECK_REQUEST(request);
  *count = static_cast<uint32_t>(request->parameters.size());
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_RequestParameter(
    TRITONBACKEND_Request* request, const uint32_t index, const char** key, TRITONSERVER_ParameterType* type,
    const void** vvalue) {
  TNB_CHECK_REQUEST(request);
  if (index >= request->parameters.size()) {
    return out_of_bounds(request, index, request->parameters.size(), "parameters");
  }
  const auto& parameter = request->parameters[index];
  *key = parameter.name.c_str();
  *type = static_cast<TRITONSERVER_ParameterType>(parameter.type);
  *vvalue = value_of(parameter);
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_RequestInputCount(TRITONBACKEND_Request* request, uint32_t* count) {
  TNB_CHECK_REQUEST(request);
  *count = static_cast<uint32_t>(request->inputs.size());
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_RequestInputName(
    TRITONBACKEND_Request* request, const uint32_t index, const char** input_name) {
  *input_name = nullptr;
  TNB_CHECK_REQUEST(request);
  if (index >= request->inputs.size()) return out_of_bounds(request, index, request->inputs.size(), "inputs");
  *input_name = request->inputs[index].name.c_str();
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_RequestInput(
    TRITONBACKEND_Request* request, const char* name, TRITONBACKEND_Input** input) {
  *input = nullptr;
  TNB_CHECK_REQUEST(request);
  for (auto& candidate : request->inputs) {
    if (candidate.name == name) {
      *input = &candidate;
      return nullptr;
    }
  }
  return error(TRITONSERVER_ERROR_INVALID_ARG, prefix(request) + "unknown request input name " + name);
}

TRITONSERVER_Error* TRITONBACKEND_RequestInputByIndex(
    TRITONBACKEND_Request* request, const uint32_t index, TRITONBACKEND_Input** input) {
  *input = nullptr;
  TNB_CHECK_REQUEST(request);
  if (index >= request->inputs.size()) return out_of_bounds(request, index, request->inputs.size(), "inputs");
  *input = &request->inputs[index];
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_RequestOutputCount(TRITONBACKEND_Request* request, uint32_t* count) {
  TNB_CHECK_REQUEST(request);
  *count = static_cast<uint32_t>(request->outputs.size());
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_RequestOutputName(
    TRITONBACKEND_Request* request, const uint32_t index, const char** output_name) {
  *output_name = nullptr;
  TNB_CHECK_REQUEST(request);
  if (index >= request->outputs.size()) {
    return out_of_bounds(request, index, request->outputs.size(), "requested outputs");
  }
  *output_name = request->outputs[index].c_str();
  return nullptr;
}

// Outputs are in ordinary memory, whose size the server does not know in advance.
TRITONSERVER_Error* TRITONBACKEND_RequestOutputBufferProperties(
    TRITONBACKEND_Request* request, const char* name, size_t* byte_size, TRITONSERVER_MemoryType* memory_type,
    int64_t* memory_type_id) {
  (void)name, (void)byte_size;
  TNB_CHECK_REQUEST(request);
  *memory_type = TRITONSERVER_MEMORY_CPU;
  *memory_type_id = 0;
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_RequestTrace(TRITONBACKEND_Request* request, TRITONSERVER_InferenceTrace** trace) {
  TNB_CHECK_REQUEST(request);
  *trace = nullptr;
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_RequestRelease(TRITONBACKEND_Request* request, uint32_t release_flags) {
  TNB_CHECK_REQUEST(request);
  const bool reschedules = (release_flags & TRITONSERVER_REQUEST_RELEASE_RESCHEDULE) != 0;
  if (!reschedules && (release_flags & TRITONSERVER_REQUEST_RELEASE_ALL) == 0) {
    return error(TRITONSERVER_ERROR_INVALID_ARG, "unknown request release flags " + std::to_string(release_flags));
  }
  const auto channel = request->channel;
  {
    std::lock_guard<std::mutex> lock(channel->mutex);
    if (request->ended.exchange(true)) return misuse(__func__, "the request was already released");
    channel->rescheduled = reschedules;
    if (request->executed) channel->post(TNB_EVENT_RELEASED);
  }
  channel->drop_producer();
  drop_request(request);
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_StateNew(
    TRITONBACKEND_State** state, TRITONBACKEND_Request* request, const char* name, const TRITONSERVER_DataType datatype,
    const int64_t* shape, const uint32_t dims_count) {
  *state = nullptr;
  TNB_CHECK_REQUEST(request);
  const auto& names = request->facts->states;
  if (names.empty()) {
    return error(
        TRITONSERVER_ERROR_INVALID_ARG, std::string("unable to add state '") + name +
                                            "'. State configuration is missing for model '" + request->facts->name +
                                            "'.");
  }
  bool known = false;
  for (const auto& candidate : names) known = known || candidate == name;
  if (!known) {
    return error(TRITONSERVER_ERROR_INVALID_ARG, std::string("state '") + name + "' is not a valid state name.");
  }
  request->states.emplace_back();
  auto& created = request->states.back();
  created.request = request;
  created.name = name;
  created.datatype = datatype;
  created.shape.assign(shape, shape + dims_count);
  *state = &created;
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_StateUpdate(TRITONBACKEND_State* state) {
  CHECK_PART(state, "state");
  if (state->request->executed) {
    return misuse(__func__, "state '" + state->name + "': expected an update before the execution ends");
  }
  state->updated = true;
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_StateBuffer(
    TRITONBACKEND_State* state, void** buffer, const uint64_t buffer_byte_size, TRITONSERVER_MemoryType* memory_type,
    int64_t* memory_type_id) {
  *buffer = nullptr;
  CHECK_PART(state, "state");
  if (state->buffer == nullptr || state->attributes.byte_size != buffer_byte_size) {
    state->buffer = allocate(buffer_byte_size);
    state->attributes.byte_size = buffer_byte_size;
  }
  *buffer = state->buffer.get();
  *memory_type = TRITONSERVER_MEMORY_CPU;
  *memory_type_id = 0;
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_StateBufferAttributes(
    TRITONBACKEND_State* state, TRITONSERVER_BufferAttributes** buffer_attributes) {
  CHECK_PART(state, "state");
  *buffer_attributes = &state->attributes;
  return nullptr;
}

}  // extern "C"
