// Forwards the output of ranks through the launcher: whole lines, marked with the rank; lines of
// different ranks are never mixed.
#pragma once

#include <chrono>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "echelon/base/deadline.h"
#include "echelon/net/socket.h"

namespace echelon {

// Whether the terminal shows a line that ends in '\r', such as a progress bar: output of another
// source clears it first. Shared by the streams that go to one terminal.
struct LiveLine {
  bool drawn = false;
};

// One of the launcher's own streams. Buffers text and writes it when the reader is ready: a blocked
// reader must not keep the launcher from noticing that a rank died.
class Outlet {
 public:
  explicit Outlet(int fd) : fd_(fd) {}
  void share(LiveLine& live) { live_ = &live; }  // for a terminal

  void put(std::string_view text);
  void write_ready();  // as much as possible without waiting
  void write_all(Deadline deadline);

  int fd() const { return fd_; }
  bool waiting() const { return written_ < pending_.size(); }
  // The buffer is full: read no more from the ranks until it is written.
  bool full() const { return pending_.size() - written_ > (1 << 20); }
  // Why nothing can be written any more (EPIPE: nobody reads), or 0; further text is dropped.
  int broken() const { return broken_; }

 private:
  int fd_;
  std::string pending_;
  std::size_t written_ = 0;
  int broken_ = 0;
  LiveLine* live_ = nullptr;
};

// The last lines that a rank printed on either stream, without overwritten progress lines.
class LastLines {
 public:
  static constexpr std::size_t kept = 20;
  static constexpr std::size_t longest = 1000;

  void add(std::string_view line);
  const std::deque<std::string>& lines() const { return lines_; }

 private:
  std::deque<std::string> lines_;
};

// The errors that ranks end with. Ranks that fail for the same reason print the same line at about
// the same time: a line that begins with "echelon: error: " is held back until the others have
// printed theirs, and is then shown once, marked with all these ranks. Different lines are all
// shown.
class FinalErrors {
 public:
  // `marked`: lines begin with "[0-3] ". The first line is held back for so long.
  FinalErrors(Outlet& outlet, bool marked, std::chrono::milliseconds patience)
      : outlet_(outlet), marked_(marked), patience_(patience) {}

  static bool is_one(std::string_view line);
  void add(int rank, std::string_view line);
  void show_of(int rank);  // the held lines of this rank, which prints more
  void show_all();
  void drop_of(int rank);  // discards the held lines of this rank
  Deadline due() const;    // when to show all; never if none is held

 private:
  struct Waiting {
    std::string line;
    std::vector<int> ranks;  // that printed it
  };
  void show(const Waiting& one);

  Outlet& outlet_;
  bool marked_;
  std::chrono::milliseconds patience_;
  std::vector<Waiting> waiting_;
  Deadline due_ = Deadline::never();
};

// "0-3", "0,2-3".
std::string rank_ranges(std::vector<int> ranks);

// One output stream of a rank, read from its pipe. A line ends at '\n', and also at '\r', so that a
// progress bar is shown while it moves.
class RankOutput {
 public:
  // `outlet` null: not shown. `log` below 0: no log. `prefix` empty: lines are forwarded unchanged.
  // `errors` null: error lines are not held back.
  RankOutput(Descriptor pipe, Outlet* outlet, int log, std::string prefix, LastLines& last,
             int rank, FinalErrors* errors);

  // Reads a bounded amount of available output; closes the pipe at its end.
  void read_ready();
  // After the rank has ended: reads the rest, and forwards a last line without a line break.
  void finish();

  int fd() const { return pipe_.get(); }  // -1 once closed
  bool held_back() const { return outlet_ && outlet_->full(); }

 private:
  bool read_some();  // false if nothing is available
  void take(std::string_view bytes);
  void pass(std::string_view line);

  Descriptor pipe_;
  Outlet* outlet_;
  int log_;
  std::string prefix_;
  LastLines* last_;
  int rank_;
  FinalErrors* errors_;
  std::string partial_;
};

}  // namespace echelon
