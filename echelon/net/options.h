#pragma once

#include <cstdint>
#include <string>

#include "echelon/base/options.h"

namespace echelon {

struct NetOptions {
  std::string interface = "";
  bool tls = false;
  bool shared_memory = true;
  std::string host = "";
  std::int64_t connections = 2;
  std::int64_t heap = 0;
  double connect_timeout = 60;
  // Worlds of up to so many ranks have a control connection between every two (control_network.h).
  // The same on all ranks; not an option of a job.
  std::int64_t control_mesh = 64;

  void fields(Fields& f) {
    f.add(
        "interface", interface,
        "interface or address that listeners bind to; empty: the loopback, or the interface that leads to a rendezvous on another machine");
    f.add("tls", tls, "TLS 1.3 under every TCP connection");
    f.add("shared_memory", shared_memory,
          "ranks on one host exchange through shared memory; false: through TCP, as across hosts");
    f.add(
        "host", host,
        "ranks with the same name share memory; empty: those of one machine and network namespace");
    f.add("connections", connections, "TCP connections per link", {.minimum = 1, .maximum = 64});
    f.add("heap", heap, "largest registered memory of a rank, in bytes; 0: the machine's memory",
          {.minimum = 0, .unit = "bytes"});
    f.add("connect_timeout", connect_timeout, "how long a rank waits for the others at the start",
          {.minimum = 0, .above_minimum = true, .unit = "s"});
  }
};

}  // namespace echelon
