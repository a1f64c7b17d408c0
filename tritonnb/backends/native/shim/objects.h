// What the handles of the backend interface point to, and what checks that they are still valid.
//
// A handle that was ended (a released request, a sent response) stays readable for a while, so that using it again is
// an error and not a crash: see RecentlyEnded.

#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "host.h"
#include "triton/core/tritonbackend.h"

namespace tritonnb {

// Keeps the last ended objects of a type, without what they own.
template <typename T>
class RecentlyEnded {
 public:
  static void add(T* object) {
    static auto& recent = *new RecentlyEnded;  // used until the process ends
    std::lock_guard<std::mutex> lock(recent.mutex_);
    recent.ended_.push_back(object);
    if (recent.ended_.size() > kSize) {
      delete recent.ended_.front();
      recent.ended_.pop_front();
    }
  }

 private:
  static constexpr size_t kSize = 1024;
  std::mutex mutex_;
  std::deque<T*> ended_;
};

// What happens in a backend's threads, for the thread of tritonnb that waits for it.
class EventQueue {
 public:
  void post(const TnbEvent& event, std::string text = "", std::string file = "");
  bool next(TnbEvent* event);  // waits; false after stop
  void stop();

 private:
  struct Posted {
    TnbEvent event;
    std::string text, file;
  };
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Posted> events_;
  Posted current_{};  // whose texts the reader uses
  bool stopping_ = false;
};

EventQueue& log_events();

// Where the responses to one request go. Shared by the request, its factories and its responses.
struct Channel {
  Channel(uint64_t token, bool decoupled, std::shared_ptr<EventQueue> events);
  ~Channel();

  std::mutex mutex;
  const uint64_t token;
  const bool decoupled;
  bool streaming;           // a response is an event at once; otherwise it is collected after the execution
  bool final_sent = false;
  bool rescheduled = false;
  int producers = 1;        // what can still respond: the request itself, factories, and responses that are not sent
  TRITONBACKEND_Response* collected = nullptr;
  std::atomic<bool> cancelled{false};

  void add_producer();
  void drop_producer();  // reports that no response will come, if this was the last producer
  void post(TnbEventKind kind, uint32_t flags = 0, TRITONBACKEND_Response* response = nullptr);
  void post(TnbEvent event);

 private:
  std::shared_ptr<EventQueue> events_;
};

using ChannelPointer = std::shared_ptr<Channel>;

// Memory that is aligned for vector instructions.
struct FreeBuffer {
  void operator()(void* memory) const { std::free(memory); }
};
using Buffer = std::unique_ptr<void, FreeBuffer>;
Buffer allocate(uint64_t size);  // nullptr if there is not enough memory

// What requests need of their model, even after it was unloaded.
struct ModelFacts {
  std::string name;
  std::vector<std::string> states;  // output names of the implicit states
  bool decoupled = false;
};

struct Parameter {
  std::string name;
  int32_t type = TRITONSERVER_PARAMETER_STRING;
  std::string text;
  int64_t integer = 0;
  double number = 0;
  bool boolean = false;
};

}  // namespace tritonnb

struct TRITONSERVER_Error {
  std::atomic<bool> ended{false};
  TRITONSERVER_Error_Code code;
  std::string message;
};

struct TRITONSERVER_Message {
  std::atomic<bool> ended{false};
  bool owned_by_server = false;
  std::string json;
};

struct TRITONSERVER_BufferAttributes {
  TRITONSERVER_MemoryType memory_type = TRITONSERVER_MEMORY_CPU;
  int64_t memory_type_id = 0;
  size_t byte_size = 0;
  void* cuda_ipc_handle = nullptr;
};

struct TRITONBACKEND_MemoryManager {
  std::mutex mutex;
  std::unordered_map<void*, tritonnb::Buffer> allocated;
};

struct TRITONBACKEND_BackendAttribute {
  bool parallel_instance_loading = false;
  std::vector<std::pair<TRITONSERVER_InstanceGroupKind, uint64_t>> preferred_groups;
};

struct TRITONBACKEND_Backend {
  std::string name;
  std::string directory;
  void* library = nullptr;
  void* state = nullptr;
  TRITONSERVER_Message config;
  TRITONBACKEND_ExecutionPolicy policy = TRITONBACKEND_EXECUTION_BLOCKING;
  TRITONBACKEND_BackendAttribute attributes;
};

struct TRITONBACKEND_Model {
  TRITONBACKEND_Backend* backend = nullptr;
  std::shared_ptr<tritonnb::ModelFacts> facts = std::make_shared<tritonnb::ModelFacts>();
  std::shared_ptr<tritonnb::EventQueue> events = std::make_shared<tritonnb::EventQueue>();
  uint64_t version = 1;
  std::string directory;
  std::string config;
  bool auto_complete = false;
  void* state = nullptr;
  std::vector<TRITONSERVER_BufferAttributes> memory;
};

struct TRITONBACKEND_ModelInstance {
  TRITONBACKEND_Model* model = nullptr;
  std::string name;
  TRITONSERVER_InstanceGroupKind kind = TRITONSERVER_INSTANCEGROUPKIND_CPU;
  int32_t device_id = 0;
  bool passive = false;
  TRITONSERVER_Message host_policy;
  void* state = nullptr;
  std::vector<TRITONSERVER_BufferAttributes> memory;
  std::mutex mutex;
  TnbBatchStatistics statistics{};  // of the execution that runs
};

struct TRITONBACKEND_Input {
  TRITONBACKEND_Request* request = nullptr;
  std::string name;
  TRITONSERVER_DataType datatype = TRITONSERVER_TYPE_INVALID;
  std::vector<int64_t> shape;
  const void* data = nullptr;
  uint64_t byte_size = 0;
  TRITONSERVER_BufferAttributes attributes;
};

struct TRITONBACKEND_State {
  TRITONBACKEND_Request* request = nullptr;
  std::string name;
  TRITONSERVER_DataType datatype = TRITONSERVER_TYPE_INVALID;
  std::vector<int64_t> shape;
  tritonnb::Buffer buffer;
  TRITONSERVER_BufferAttributes attributes;
  bool updated = false;
};

struct TRITONBACKEND_Request {
  std::atomic<bool> ended{false};  // released by the backend
  std::shared_ptr<tritonnb::ModelFacts> facts;
  tritonnb::ChannelPointer channel;
  std::atomic<bool> executed{false};  // the execute function has returned
  std::atomic<int> holders{2};        // the backend until the release, and the server
  std::string id;
  uint64_t correlation_id = 0;
  std::string correlation_text;
  bool has_correlation_text = false;
  uint32_t flags = 0;
  uint64_t timeout_us = 0;
  std::deque<TRITONBACKEND_Input> inputs;  // addresses stay the same
  std::vector<std::string> outputs;
  std::vector<tritonnb::Parameter> parameters;
  std::deque<TRITONBACKEND_State> states;
  std::vector<TnbTensor> updated_states;
  int reported = -1;  // success as the backend reports it; -1 if it did not
};

struct TRITONBACKEND_ResponseFactory {
  std::atomic<bool> ended{false};
  tritonnb::ChannelPointer channel;
};

struct TRITONBACKEND_Output {
  TRITONBACKEND_Response* response = nullptr;
  std::string name;
  TRITONSERVER_DataType datatype = TRITONSERVER_TYPE_INVALID;
  std::vector<int64_t> shape;
  tritonnb::Buffer buffer;
  TRITONSERVER_BufferAttributes attributes;
};

struct TRITONBACKEND_Response {
  std::atomic<bool> ended{false};  // sent or deleted by the backend
  tritonnb::ChannelPointer channel;
  std::deque<TRITONBACKEND_Output> outputs;
  std::vector<tritonnb::Parameter> parameters;
  // As tritonnb reads it.
  TnbResponse view{};
  std::vector<TnbTensor> tensors;
  std::vector<TnbParameter> parameter_views;
  std::string error_message;
};

struct TRITONBACKEND_ModelInstanceResponseStatistics {
  std::atomic<bool> ended{false};
  TRITONBACKEND_ModelInstance* instance = nullptr;
  tritonnb::ChannelPointer channel;
};

namespace tritonnb {

TRITONSERVER_Error* error(TRITONSERVER_Error_Code code, const std::string& message);

// A violation of the interface's rules of ownership: it is logged, since backends often ignore errors.
TRITONSERVER_Error* misuse(const char* function, const std::string& problem);

void free_response(TRITONBACKEND_Response* response);  // ends its memory, and keeps the empty object for a while
void drop_request(TRITONBACKEND_Request* request);     // the backend or the server is done with it

template <typename T>
TRITONSERVER_Error* check(T* handle, const char* function, const char* what, const char* end) {
  if (handle == nullptr) return error(TRITONSERVER_ERROR_INVALID_ARG, std::string(what) + " was nullptr");
  if (handle->ended) return misuse(function, std::string("the ") + what + " was already " + end);
  return nullptr;
}

}  // namespace tritonnb

// Return an error from an API function if a handle cannot be used.
#define TNB_CHECK(HANDLE, WHAT, END)                                                                          \
  do {                                                                                                       \
    if (auto* problem = tritonnb::check(HANDLE, __func__, WHAT, END)) return problem;                          \
  } while (false)
#define TNB_CHECK_REQUEST(REQUEST) TNB_CHECK(REQUEST, "request", "released")
#define TNB_CHECK_RESPONSE(RESPONSE) TNB_CHECK(RESPONSE, "response", "sent or deleted")
#define TNB_CHECK_FACTORY(FACTORY) TNB_CHECK(FACTORY, "response factory", "deleted")
