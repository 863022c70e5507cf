#include "echelon/launch/rank_output.h"

#include <limits.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

namespace echelon {

namespace {

constexpr std::size_t longest_line = 1 << 20;
constexpr std::string_view clear_line = "\r\x1b[J";  // including the lines it wrapped into
constexpr int reads_in_a_row = 4;     // of 64 KiB, before it is the other ranks' turn
constexpr int reads_at_the_end = 32;  // a descendant that prints for ever must not hold us up

bool takes_more(int fd) {
  pollfd ready{fd, POLLOUT, 0};
  return ::poll(&ready, 1, 0) == 1;
}

// Log files are on the local disk or a network file system. Waiting for them is the lesser evil.
void write_log(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const auto done = ::write(fd, bytes.data(), bytes.size());
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) return;
    bytes.remove_prefix(static_cast<std::size_t>(done));
  }
}

}  // namespace

void Outlet::put(std::string_view text) {
  if (broken_ || text.empty()) return;
  if (live_) {
    // A bare newline leaves what was drawn in place.
    if (live_->drawn && text.front() != '\r' && text != "\n") pending_ += clear_line;
    live_->drawn = text.size() > 1 && text.back() == '\r';
  }
  pending_ += text;
  write_ready();
}

void Outlet::write_ready() {
  // A pipe that is ready accepts PIPE_BUF bytes without blocking. The stream itself stays blocking,
  // because it is shared with the process that started us.
  while (waiting() && !broken_ && takes_more(fd_)) {
    const auto size = std::min<std::size_t>(pending_.size() - written_, PIPE_BUF);
    const auto done = ::write(fd_, pending_.data() + written_, size);
    if (done >= 0) {
      written_ += static_cast<std::size_t>(done);
    } else if (errno == EAGAIN) {
      break;
    } else if (errno != EINTR) {
      broken_ = errno;
    }
  }
  if (broken_ || !waiting()) {
    pending_.clear();
    written_ = 0;
  } else if (written_ > (1 << 16)) {
    pending_.erase(0, written_);
    written_ = 0;
  }
}

void Outlet::write_all(Deadline deadline) {
  write_ready();
  while (waiting() && !broken_ && wait_ready(fd_, POLLOUT, deadline)) write_ready();
}

void LastLines::add(std::string_view line) {
  while (!line.empty() && (line.back() == '\n' || line.back() == '\r')) line.remove_suffix(1);
  if (line.empty()) return;
  if (lines_.size() == kept) lines_.pop_front();
  lines_.emplace_back(line.substr(0, longest));
}

bool FinalErrors::is_one(std::string_view line) { return line.starts_with("echelon: error: "); }

void FinalErrors::add(int rank, std::string_view line) {
  const auto end = line.find_last_not_of("\r\n");
  line = line.substr(0, end == std::string_view::npos ? 0 : end + 1);
  if (waiting_.empty()) due_ = Deadline::in(patience_);
  const auto same = std::ranges::find_if(waiting_, [&](const Waiting& one) {
    return one.line == line && std::ranges::find(one.ranks, rank) == one.ranks.end();
  });
  if (same != waiting_.end())
    same->ranks.push_back(rank);
  else
    waiting_.push_back({std::string(line), {rank}});
}

void FinalErrors::show_of(int rank) {
  for (auto& one : waiting_)
    if (std::erase(one.ranks, rank) > 0) show({one.line, {rank}});
  std::erase_if(waiting_, [](const Waiting& one) { return one.ranks.empty(); });
}

void FinalErrors::show_all() {
  for (const auto& one : waiting_) show(one);
  waiting_.clear();
}

void FinalErrors::drop_of(int rank) {
  for (auto& one : waiting_) std::erase(one.ranks, rank);
  std::erase_if(waiting_, [](const Waiting& one) { return one.ranks.empty(); });
}

void FinalErrors::show(const Waiting& one) {
  outlet_.put((marked_ ? "[" + rank_ranges(one.ranks) + "] " : "") + one.line + "\n");
}

Deadline FinalErrors::due() const { return waiting_.empty() ? Deadline::never() : due_; }

std::string rank_ranges(std::vector<int> ranks) {
  std::ranges::sort(ranks);
  std::string text;
  for (std::size_t first = 0, last = 0; first < ranks.size(); first = ++last) {
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    text += (text.empty() ? "" : ",") + std::to_string(ranks[first]);
    if (last > first) text += "-" + std::to_string(ranks[last]);
  }
  return text;
}

RankOutput::RankOutput(Descriptor pipe, Outlet* outlet, int log, std::string prefix,
                       LastLines& last, int rank, FinalErrors* errors)
    : pipe_(std::move(pipe)),
      outlet_(outlet),
      log_(log),
      prefix_(std::move(prefix)),
      last_(&last),
      rank_(rank),
      errors_(errors) {}

bool RankOutput::read_some() {
  if (!pipe_) return false;
  std::array<char, 1 << 16> bytes;
  const auto size = ::read(pipe_.get(), bytes.data(), bytes.size());
  if (size > 0) {
    take({bytes.data(), static_cast<std::size_t>(size)});
    return true;
  }
  if (size < 0 && errno == EINTR) return true;
  if (size == 0 || errno != EAGAIN) pipe_ = Descriptor();
  return false;
}

void RankOutput::read_ready() {
  for (int i = 0; i < reads_in_a_row && !held_back() && read_some(); ++i) {
  }
}

void RankOutput::finish() {
  for (int i = 0; i < reads_at_the_end && read_some(); ++i) {
  }
  if (!partial_.empty()) pass(std::exchange(partial_, {}));
}

void RankOutput::take(std::string_view bytes) {
  if (log_ >= 0) write_log(log_, bytes);
  partial_ += bytes;
  std::size_t begin = 0;
  while (true) {
    auto end = partial_.find_first_of("\r\n", begin);
    if (end == std::string::npos) break;
    if (partial_[end] == '\r') {
      // "\r\n" may be on its way. A line without a prefix need not wait for it.
      if (end + 1 == partial_.size() && !prefix_.empty()) break;
      if (end + 1 < partial_.size() && partial_[end + 1] == '\n') ++end;
    }
    pass(std::string_view(partial_).substr(begin, end + 1 - begin));
    begin = end + 1;
  }
  partial_.erase(0, begin);
  if (partial_.size() > longest_line) pass(std::exchange(partial_, {}));
}

void RankOutput::pass(std::string_view line) {
  if (!line.ends_with('\r')) last_->add(line);
  if (!outlet_) return;
  if (errors_) {
    if (FinalErrors::is_one(line)) return errors_->add(rank_, line);
    errors_->show_of(rank_);  // later output comes after it
  }
  if (prefix_.empty()) return outlet_->put(line);
  std::string text = prefix_;
  text += line;
  if (text.back() != '\n' && text.back() != '\r') text += '\n';
  outlet_->put(text);
}

}  // namespace echelon
