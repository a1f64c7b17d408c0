// Errors, names, log messages, JSON messages and attributes of buffers.

#include <sys/mman.h>

#include <cstring>

#include "objects.h"

namespace tritonnb {

namespace {

std::atomic<uint32_t> log_levels{~0u};

struct DataTypeFacts {
  const char* name;
  uint32_t byte_size;
};
constexpr DataTypeFacts kDataTypes[] = {
    {"<invalid>", 0}, {"BOOL", 1},  {"UINT8", 1}, {"UINT16", 2}, {"UINT32", 4},
    {"UINT64", 8},    {"INT8", 1},  {"INT16", 2}, {"INT32", 4},  {"INT64", 8},
    {"FP16", 2},      {"FP32", 4},  {"FP64", 8},  {"BYTES", 0},  {"BF16", 2},
};
constexpr size_t kDataTypeCount = sizeof(kDataTypes) / sizeof(kDataTypes[0]);

template <size_t N>
const char* name_of(const char* const (&names)[N], int value, const char* otherwise) {
  return value >= 0 && static_cast<size_t>(value) < N ? names[value] : otherwise;
}

}  // namespace

TRITONSERVER_Error* error(TRITONSERVER_Error_Code code, const std::string& message) {
  return TRITONSERVER_ErrorNew(code, message.c_str());
}

TRITONSERVER_Error* misuse(const char* function, const std::string& problem) {
  const auto message = std::string(function) + ": " + problem;
  TRITONSERVER_LogMessage(TRITONSERVER_LOG_ERROR, "backend", 0, message.c_str());
  return error(TRITONSERVER_ERROR_INVALID_ARG, message);
}

// Large buffers are aligned to huge pages and use them, as NumPy's arrays do: a fault for each small page takes longer
// than to copy its contents.
Buffer allocate(uint64_t size) {
  constexpr uint64_t kHugePage = 1u << 21;
  const uint64_t alignment = size < 2 * kHugePage ? 64 : kHugePage;
  const uint64_t length = (size / alignment + 1) * alignment;
  Buffer buffer(std::aligned_alloc(alignment, length));
  if (buffer != nullptr && alignment == kHugePage) madvise(buffer.get(), length, MADV_HUGEPAGE);
  return buffer;
}

}  // namespace tritonnb

using namespace tritonnb;

TNB_API void tnb_log_levels(uint32_t bits) { log_levels = bits; }

extern "C" {

TRITONSERVER_Error* TRITONSERVER_ApiVersion(uint32_t* major, uint32_t* minor) {
  *major = TRITONSERVER_API_VERSION_MAJOR;
  *minor = TRITONSERVER_API_VERSION_MINOR;
  return nullptr;
}

TRITONSERVER_Error* TRITONSERVER_ErrorNew(TRITONSERVER_Error_Code code, const char* msg) {
  auto* created = new TRITONSERVER_Error;
  created->code = code;
  created->message = msg == nullptr ? "" : msg;
  return created;
}

void TRITONSERVER_ErrorDelete(TRITONSERVER_Error* error) {
  if (error == nullptr) return;
  if (error->ended.exchange(true)) {
    TRITONSERVER_ErrorDelete(misuse(__func__, "the error was already deleted"));
    return;
  }
  error->message.clear();
  RecentlyEnded<TRITONSERVER_Error>::add(error);
}

TRITONSERVER_Error_Code TRITONSERVER_ErrorCode(TRITONSERVER_Error* error) { return error->code; }

const char* TRITONSERVER_ErrorCodeString(TRITONSERVER_Error* error) {
  static const char* const kNames[] = {"Unknown",     "Internal",    "Not found",      "Invalid argument",
                                       "Unavailable", "Unsupported", "Already exists", "Cancelled"};
  return name_of(kNames, error->code, "<invalid code>");
}

const char* TRITONSERVER_ErrorMessage(TRITONSERVER_Error* error) { return error->message.c_str(); }

const char* TRITONSERVER_DataTypeString(TRITONSERVER_DataType datatype) {
  return kDataTypes[static_cast<size_t>(datatype) < kDataTypeCount ? datatype : 0].name;
}

TRITONSERVER_DataType TRITONSERVER_StringToDataType(const char* dtype) {
  for (size_t number = 1; number < kDataTypeCount; ++number) {
    if (std::strcmp(kDataTypes[number].name, dtype) == 0) return static_cast<TRITONSERVER_DataType>(number);
  }
  return TRITONSERVER_TYPE_INVALID;
}

uint32_t TRITONSERVER_DataTypeByteSize(TRITONSERVER_DataType datatype) {
  return kDataTypes[static_cast<size_t>(datatype) < kDataTypeCount ? datatype : 0].byte_size;
}

const char* TRITONSERVER_MemoryTypeString(TRITONSERVER_MemoryType memtype) {
  static const char* const kNames[] = {"CPU", "CPU_PINNED", "GPU"};
  return name_of(kNames, memtype, "<invalid>");
}

const char* TRITONSERVER_ParameterTypeString(TRITONSERVER_ParameterType paramtype) {
  static const char* const kNames[] = {"STRING", "INT", "BOOL", "DOUBLE", "BYTES"};
  return name_of(kNames, paramtype, "<invalid>");
}

const char* TRITONSERVER_InstanceGroupKindString(TRITONSERVER_InstanceGroupKind kind) {
  static const char* const kNames[] = {"AUTO", "CPU", "GPU", "MODEL"};
  return name_of(kNames, kind, "<invalid>");
}

bool TRITONSERVER_LogIsEnabled(TRITONSERVER_LogLevel level) {
  return level >= TRITONSERVER_LOG_INFO && level <= TRITONSERVER_LOG_VERBOSE && (log_levels >> level & 1) != 0;
}

TRITONSERVER_Error* TRITONSERVER_LogMessage(
    TRITONSERVER_LogLevel level, const char* filename, const int line, const char* msg) {
  if (level < TRITONSERVER_LOG_INFO || level > TRITONSERVER_LOG_VERBOSE) {
    return error(TRITONSERVER_ERROR_INVALID_ARG, "unknown logging level '" + std::to_string(level) + "'");
  }
  if (!TRITONSERVER_LogIsEnabled(level)) return nullptr;
  TnbEvent event{};
  event.kind = TNB_EVENT_LOG;
  event.flags = level;
  event.line = line;
  log_events().post(event, msg == nullptr ? "" : msg, filename == nullptr ? "" : filename);
  return nullptr;
}

TRITONSERVER_Error* TRITONSERVER_MessageNewFromSerializedJson(
    TRITONSERVER_Message** message, const char* base, size_t byte_size) {
  auto* created = new TRITONSERVER_Message;
  created->json.assign(base, byte_size);
  *message = created;
  return nullptr;
}

TRITONSERVER_Error* TRITONSERVER_MessageDelete(TRITONSERVER_Message* message) {
  TNB_CHECK(message, "message", "deleted");
  if (message->owned_by_server) return misuse(__func__, "the message belongs to the server");
  message->ended = true;
  message->json.clear();
  RecentlyEnded<TRITONSERVER_Message>::add(message);
  return nullptr;
}

TRITONSERVER_Error* TRITONSERVER_MessageSerializeToJson(
    TRITONSERVER_Message* message, const char** base, size_t* byte_size) {
  TNB_CHECK(message, "message", "deleted");
  *base = message->json.data();
  *byte_size = message->json.size();
  return nullptr;
}

// No request has a trace handle (see TRITONBACKEND_RequestTrace).
TRITONSERVER_Error* TRITONSERVER_InferenceTraceReportActivity(
    TRITONSERVER_InferenceTrace* trace, uint64_t timestamp, const char* activity_name) {
  (void)trace, (void)timestamp, (void)activity_name;
  return nullptr;
}

TRITONSERVER_Error* TRITONSERVER_BufferAttributesNew(TRITONSERVER_BufferAttributes** attributes) {
  *attributes = new TRITONSERVER_BufferAttributes;
  return nullptr;
}

TRITONSERVER_Error* TRITONSERVER_BufferAttributesDelete(TRITONSERVER_BufferAttributes* attributes) {
  delete attributes;
  return nullptr;
}

TRITONSERVER_Error* TRITONSERVER_BufferAttributesSetMemoryTypeId(
    TRITONSERVER_BufferAttributes* attributes, int64_t memory_type_id) {
  attributes->memory_type_id = memory_type_id;
  return nullptr;
}

TRITONSERVER_Error* TRITONSERVER_BufferAttributesSetMemoryType(
    TRITONSERVER_BufferAttributes* attributes, TRITONSERVER_MemoryType memory_type) {
  attributes->memory_type = memory_type;
  return nullptr;
}

TRITONSERVER_Error* TRITONSERVER_BufferAttributesSetCudaIpcHandle(
    TRITONSERVER_BufferAttributes* attributes, void* cuda_ipc_handle) {
  attributes->cuda_ipc_handle = cuda_ipc_handle;
  return nullptr;
}

TRITONSERVER_Error* TRITONSERVER_BufferAttributesSetByteSize(
    TRITONSERVER_BufferAttributes* attributes, size_t byte_size) {
  attributes->byte_size = byte_size;
  return nullptr;
}

TRITONSERVER_Error* TRITONSERVER_BufferAttributesMemoryTypeId(
    TRITONSERVER_BufferAttributes* attributes, int64_t* memory_type_id) {
  *memory_type_id = attributes->memory_type_id;
  return nullptr;
}

TRITONSERVER_Error* TRITONSERVER_BufferAttributesMemoryType(
    TRITONSERVER_BufferAttributes* attributes, TRITONSERVER_MemoryType* memory_type) {
  *memory_type = attributes->memory_type;
  return nullptr;
}

TRITONSERVER_Error* TRITONSERVER_BufferAttributesCudaIpcHandle(
    TRITONSERVER_BufferAttributes* attributes, void** cuda_ipc_handle) {
  *cuda_ipc_handle = attributes->cuda_ipc_handle;
  return nullptr;
}

TRITONSERVER_Error* TRITONSERVER_BufferAttributesByteSize(
    TRITONSERVER_BufferAttributes* attributes, size_t* byte_size) {
  *byte_size = attributes->byte_size;
  return nullptr;
}

}  // extern "C"
