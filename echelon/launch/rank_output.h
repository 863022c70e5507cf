// What ranks print, on its way through the launcher: whole lines of each rank, marked with its
// number, never a part of one rank's line inside another's.
#pragma once

#include <chrono>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "echelon/base/deadline.h"
#include "echelon/net/socket.h"

namespace echelon {

// Whether a line that ends in '\r' stands on the terminal, which the next one is to be drawn over:
// what comes from elsewhere first clears it. Shared by the streams that go to one terminal.
struct LiveLine {
  bool drawn = false;
};

// One of the launcher's own streams. Takes text at once and writes it when the reader is ready: a
// reader that has stopped must not keep the launcher from seeing a rank die.
class Outlet {
 public:
  explicit Outlet(int fd) : fd_(fd) {}
  void share(LiveLine& live) { live_ = &live; }  // it is a terminal

  void put(std::string_view text);
  void write_ready();  // as much as goes without waiting
  void write_all(Deadline deadline);

  int fd() const { return fd_; }
  bool waiting() const { return written_ < pending_.size(); }
  // Enough is waiting; read no more from the ranks until it has gone.
  bool full() const { return pending_.size() - written_ > (1 << 20); }
  // Why nothing can be written any more (EPIPE: nobody reads), or 0; what comes then is dropped.
  int broken() const { return broken_; }

 private:
  int fd_;
  std::string pending_;
  std::size_t written_ = 0;
  int broken_ = 0;
  LiveLine* live_ = nullptr;
};

// The last lines that a rank printed on either stream, but for those that were drawn over.
class LastLines {
 public:
  static constexpr std::size_t kept = 20;
  static constexpr std::size_t longest = 1000;

  void add(std::string_view line);
  const std::deque<std::string>& lines() const { return lines_; }

 private:
  std::deque<std::string> lines_;
};

// The errors that ranks end with. Ranks that fail for one reason say the same, all within a moment:
// a line that begins with "echelon: error: " waits for those of the others, and is then shown once,
// marked with all who said it. Texts that differ are all shown.
class FinalErrors {
 public:
  // `marked`: with "[0-3] " before them. The first waits for others for so long.
  FinalErrors(Outlet& outlet, bool marked, std::chrono::milliseconds patience)
      : outlet_(outlet), marked_(marked), patience_(patience) {}

  static bool is_one(std::string_view line);
  void add(int rank, std::string_view line);
  void show_of(int rank);  // what waits of this rank, which has more to say
  void show_all();
  void drop_of(int rank);  // what waits of this rank is nothing to show
  Deadline due() const;    // when to show all; never, where none waits

 private:
  struct Waiting {
    std::string line;
    std::vector<int> ranks;  // that said it
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

// One stream of one rank, read from its pipe. A line ends at '\n', and at '\r' so that a progress
// bar is seen as it moves.
class RankOutput {
 public:
  // `outlet` null: not shown. `log` below 0: not written. `prefix` empty: bytes are passed as they
  // are, whole lines at a time. `errors` null: lines are shown as they come.
  RankOutput(Descriptor pipe, Outlet* outlet, int log, std::string prefix, LastLines& last,
             int rank, FinalErrors* errors);

  // Reads what is there, within reason; closes the pipe at its end.
  void read_ready();
  // The rank is gone: reads the rest that is there and passes on a last line without an end.
  void finish();

  int fd() const { return pipe_.get(); }  // -1 once closed
  bool held_back() const { return outlet_ && outlet_->full(); }

 private:
  bool read_some();  // false when there is nothing now
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
