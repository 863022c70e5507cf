#include "echelon/verify/certificate.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string_view>
#include <thread>

#include "echelon/base/build_config.h"
#include "echelon/base/wrapped.h"
#include "echelon/base/xml.h"
#include "echelon/verify/faults.h"

namespace echelon {
namespace {

using nlohmann::ordered_json;

std::string cpu_model() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("model name"))
      if (const auto colon = line.find(": "); colon != std::string::npos)
        return line.substr(colon + 2);
  return "unknown";
}

std::string host_name() {
  char name[256] = {};
  ::gethostname(name, sizeof name - 1);
  return name;
}

// What the certificate records besides cells: names and values.
std::vector<std::pair<std::string, ordered_json>> circumstances(const Certificate& certificate) {
  const auto now = std::chrono::floor<std::chrono::seconds>(std::chrono::system_clock::now());
  return {{"echelon", ECHELON_VERSION},
          {"commit", ECHELON_COMMIT},
          {"torch", ECHELON_TORCH_VERSION},
          {"compiler", fmt::format("{} {}",
#ifdef __clang__
                                   "clang",
#else
                                   "gcc",
#endif
                                   __VERSION__)},
          {"machine", host_name()},
          {"cpu", cpu_model()},
          {"cores", std::thread::hardware_concurrency()},
          {"date", fmt::format("{:%FT%TZ}", now)},
          {"command", certificate.command}};
}

constexpr const char* head = R"(<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Echelon: certificate</title>
<style>
:root { color-scheme: light dark; --ink: #1b1f24; --paper: #fff; --line: #d8dee4; --dim: #57606a; --bad: #cf222e;
  --badpaper: #ffebe9; --good: #1a7f37; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6edf3; --paper: #0d1117; --line: #30363d; --dim: #8d96a0; --bad: #ff7b72; --badpaper: #3d1416;
    --good: #3fb950; } }
body { margin: 2rem auto; max-width: 80rem; padding: 0 1rem; font: 15px/1.45 system-ui, sans-serif;
  color: var(--ink); background: var(--paper); }
h1 { font-size: 1.5rem; } h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; }
.verdict { font-size: 1.1rem; font-weight: 600; } .good { color: var(--good); } .bad { color: var(--bad); }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .1rem 1rem; } dt { color: var(--dim); }
dd { margin: 0; } .wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .2rem .6rem; border-bottom: 1px solid var(--line); vertical-align: top; }
th { color: var(--dim); font-weight: 500; } td.n, th.n { text-align: right; white-space: nowrap; }
tr.bad { background: var(--badpaper); } tr.bad td { color: var(--bad); } td p { margin: .2rem 0 0; }
</style>
)";

std::string paragraphs(const std::vector<std::string>& texts) {
  std::string all;
  for (const auto& text : texts) all += "<p>" + escaped_xml(text) + "</p>";
  return all;
}

std::string row(const VerifyCell& cell) {
  const auto verdict = [](bool ok) { return ok ? "ok" : "WRONG"; };
  return fmt::format(
      "<tr{}><td class=n>{}<td>{}<td>{}{}<td class=n>{:.1e}<td class=n>{:.1e}<td>{}<td>{}<td>{}"
      "<td class=n>{:.2f}</tr>\n",
      cell.ok() ? "" : " class=bad", cell.world, escaped_xml(cell.mesh), escaped_xml(cell.name),
      paragraphs(cell.notes), cell.max_abs_diff, cell.bound, verdict(cell.bytes_ok),
      verdict(cell.memory_ok),
      cell.bubble.empty() ? ""
                          : fmt::format("{} {}", escaped_xml(cell.bubble), verdict(cell.bubble_ok)),
      cell.seconds);
}

std::string table(const std::string& title, const std::vector<const VerifyCell*>& cells) {
  if (cells.empty()) return {};
  std::string text = fmt::format(
      "<h2>{}</h2>\n<div class=wide><table>\n<tr><th class=n>world<th>mesh<th>strategy<th class=n>"
      "max diff<th class=n>bound<th>bytes<th>memory<th>bubble<th class=n>s</tr>\n",
      escaped_xml(title));
  for (const auto* cell : cells) text += row(*cell);
  return text + "</table></div>\n";
}

// The result in one sentence. An injected fault must be caught.
std::string verdict(const Certificate& certificate) {
  const auto cells = certificate.cells.size();
  const int failed = certificate.failed_cells();
  if (!certificate.fault.empty())
    return fmt::format("The fault {} was injected, and {}: {} of {} cells failed",
                       certificate.fault, certificate.caught() ? "caught" : "NOT caught", failed,
                       cells);
  return certificate.failed() > 0 ? fmt::format("{} of {} cells failed", failed, cells)
                                  : fmt::format("All {} cells hold", cells);
}

}  // namespace

int Certificate::failed_cells() const {
  return int(
      std::count_if(cells.begin(), cells.end(), [](const auto& cell) { return !cell.ok(); }));
}

std::string text_head() {
  return fmt::format("{:<6}  {:>5}  {:>8}  {:>7}  {}\n", "result", "world", "max diff", "bound",
                     "strategy");
}

std::string to_text(const VerifyCell& cell) {
  const std::string numbers =
      fmt::format("{:<6}  {:>5}  {:>8.1e}  {:>7.1e}  ", cell.ok() ? "ok" : "FAILED", cell.world,
                  cell.max_abs_diff, cell.bound);
  std::string lines = wrapped(numbers, cell.name, numbers.size());
  if (cell.ok()) return lines;
  for (const auto& note : cell.notes) lines += wrapped("        ", note, 10);
  return lines;
}

std::string to_json(const Certificate& certificate) {
  ordered_json all;
  for (const auto& [name, value] : circumstances(certificate)) all[name] = value;
  if (!certificate.fault.empty()) {
    all["fault"] = certificate.fault;
    all["fault_caught"] = certificate.caught();
  }
  all["cells"] = ordered_json::array();
  for (const auto& cell : certificate.cells)
    all["cells"].push_back({{"name", cell.name},
                            {"world", cell.world},
                            {"mesh", cell.mesh},
                            {"max_abs_diff", cell.max_abs_diff},
                            {"bound", cell.bound},
                            {"bytes_ok", cell.bytes_ok},
                            {"memory_ok", cell.memory_ok},
                            {"bubble_ok", cell.bubble_ok},
                            {"bubble", cell.bubble},
                            {"note", fmt::format("{}", fmt::join(cell.notes, "; "))},
                            {"notes", cell.notes},
                            {"ok", cell.ok()},
                            {"seconds", cell.seconds}});
  all["broken_worlds"] = certificate.broken_worlds;
  all["failed"] = certificate.failed();
  return all.dump(2) + "\n";
}

std::vector<VerifyCell> parse_cells(const std::string& json) {
  std::vector<VerifyCell> cells;
  const auto all = ordered_json::parse(json);
  for (const auto& one : all.at("cells"))
    cells.push_back({.name = one.at("name"),
                     .world = one.at("world"),
                     .mesh = one.at("mesh"),
                     .max_abs_diff = one.at("max_abs_diff").is_null()
                                         ? INFINITY
                                         : one.at("max_abs_diff").get<double>(),
                     .bound = one.at("bound"),
                     .bytes_ok = one.at("bytes_ok"),
                     .memory_ok = one.at("memory_ok"),
                     .bubble_ok = one.at("bubble_ok"),
                     .bubble = one.at("bubble"),
                     .notes = one.at("notes"),
                     .seconds = one.at("seconds")});
  return cells;
}

std::string to_html(const Certificate& certificate) {
  const bool injected = !certificate.fault.empty();
  const bool good = injected ? certificate.caught() : certificate.failed() == 0;
  std::string page = head;
  page += fmt::format("<h1>Echelon: {}</h1>\n",
                      injected ? "whether a deliberate fault is caught"
                               : "every strategy trains what one process trains");
  page += fmt::format("<p class=\"verdict {}\">{}</p>\n", good ? "good" : "bad",
                      escaped_xml(verdict(certificate)));
  if (certificate.broken_worlds > 0)
    page += fmt::format("<p class=bad>{} world(s) did not finish</p>\n", certificate.broken_worlds);
  if (const Fault* fault = find_fault(certificate.fault))
    page += fmt::format("<p>{}: {}. The check of {} must catch it.</p>\n", escaped_xml(fault->name),
                        escaped_xml(fault->what), name(fault->caught_by));
  page += "<dl>\n";
  for (const auto& [name, value] : circumstances(certificate))
    page += fmt::format("<dt>{}<dd>{}\n", name,
                        escaped_xml(value.is_string() ? value.get<std::string>() : value.dump()));
  page += "</dl>\n";
  page +=
      "<p>max diff: of any parameter from one process in fp64; in bf16 and fp16 of any step's loss. "
      "bytes: the bytes that all ranks sent equal the closed form. memory: so do the bytes of "
      "parameters, gradients and optimiser state of every rank. bubble: so does the idle over ideal "
      "time of a pipeline, by the order in which its ranks ran.</p>\n";
  std::vector<const VerifyCell*> failed;
  std::map<int, std::vector<const VerifyCell*>> hold;  // by world
  for (const auto& cell : certificate.cells)
    (cell.ok() ? hold[cell.world] : failed).push_back(&cell);
  page += table("Failed", failed);
  for (const auto& [world, cells] : hold)
    page += table(fmt::format("World of {}{}", world, failed.empty() ? "" : ": those that hold"),
                  cells);
  return page + "</html>\n";
}

}  // namespace echelon
