// Events, and the channels that they belong to.

#include "objects.h"

namespace tritonnb {

namespace {

// The channels that exist, by token, so that a cancellation needs no handle that may have ended.
struct Channels {
  std::mutex mutex;
  std::unordered_map<uint64_t, Channel*> by_token;
};

Channels& channels() {
  static auto& all = *new Channels;  // used until the process ends
  return all;
}

EventQueue& events_of(TRITONBACKEND_Model* model) { return model == nullptr ? log_events() : *model->events; }

}  // namespace

EventQueue& log_events() {
  static auto& events = *new EventQueue;  // used until the process ends
  return events;
}

void EventQueue::post(const TnbEvent& event, std::string text, std::string file) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    events_.push_back({event, std::move(text), std::move(file)});
  }
  changed_.notify_one();
}

bool EventQueue::next(TnbEvent* event) {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [this] { return stopping_ || !events_.empty(); });
  if (events_.empty()) {
    stopping_ = false;
    return false;
  }
  current_ = std::move(events_.front());
  events_.pop_front();
  *event = current_.event;
  event->text = current_.text.c_str();
  event->file = current_.file.c_str();
  return true;
}

void EventQueue::stop() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_one();
}

Channel::Channel(uint64_t token, bool decoupled, std::shared_ptr<EventQueue> events)
    : token(token), decoupled(decoupled), streaming(decoupled), events_(std::move(events)) {
  auto& all = channels();
  std::lock_guard<std::mutex> lock(all.mutex);
  all.by_token[token] = this;
}

Channel::~Channel() {
  auto& all = channels();
  std::lock_guard<std::mutex> lock(all.mutex);
  all.by_token.erase(token);
}

void Channel::add_producer() {
  std::lock_guard<std::mutex> lock(mutex);
  ++producers;
}

void Channel::drop_producer() {
  std::lock_guard<std::mutex> lock(mutex);
  if (--producers == 0 && streaming && !final_sent && !rescheduled) post(TNB_EVENT_ABANDONED);
}

void Channel::post(TnbEventKind kind, uint32_t flags, TRITONBACKEND_Response* response) {
  TnbEvent event{};
  event.kind = kind;
  event.flags = flags;
  event.response = response;
  post(event);
}

void Channel::post(TnbEvent event) {
  event.token = token;
  events_->post(event);
}

}  // namespace tritonnb

using namespace tritonnb;

TNB_API bool tnb_events_next(TRITONBACKEND_Model* model, TnbEvent* event) { return events_of(model).next(event); }

TNB_API void tnb_events_stop(TRITONBACKEND_Model* model) { events_of(model).stop(); }

TNB_API void tnb_cancel(uint64_t token) {
  auto& all = channels();
  std::lock_guard<std::mutex> lock(all.mutex);
  const auto entry = all.by_token.find(token);
  if (entry != all.by_token.end()) entry->second->cancelled = true;
}
