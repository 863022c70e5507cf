#include "echelon/net/file_limit.h"

#include <fmt/format.h>

#include "echelon/base/error.h"
#include "echelon/base/folder.h"

namespace echelon {

rlimit raise_file_limit() {
  rlimit before{};
  ::getrlimit(RLIMIT_NOFILE, &before);
  const rlimit raised{before.rlim_max, before.rlim_max};
  ::setrlimit(RLIMIT_NOFILE, &raised);
  return before;
}

std::size_t open_files() {
  std::error_code error;
  return list_folder("/proc/self/fd", error).size();
}

void require_files(std::size_t further, const std::string& what) {
  rlimit limit{};
  const std::size_t needed = open_files() + further;
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY ||
      needed <= limit.rlim_cur)
    return;
  throw InvalidArgument(fmt::format(
      "{} needs {} open files in this process, and the limit is {}: raise the hard limit (ulimit -Hn "
      "{} as root, LimitNOFILE= of a service, nofile in /etc/security/limits.conf, --ulimit nofile= "
      "of a container), or use fewer ranks",
      what, needed, limit.rlim_cur, needed));
}

}  // namespace echelon
