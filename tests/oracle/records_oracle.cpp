// Prints the records of a file as lines of JSON: records_oracle FILE HEADER(0|1) [COLUMN…].
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string_view>

#include "echelon/base/error.h"
#include "echelon/data/records/records.h"

int main(int argc, char** argv) try {
  const echelon::Records records(argv[1], {.header = argv[2] == std::string_view("1")});
  std::vector<int> columns;
  for (int i = 3; i < argc; ++i) columns.push_back(records.column(argv[i]));
  if (argc == 3)
    for (std::size_t i = 0; i < records.columns().size(); ++i) columns.push_back(int(i));
  for (std::int64_t i = 0; i < records.size(); ++i)
    std::printf("%s\n", nlohmann::json(records.read(i, columns)).dump().c_str());
  return 0;
} catch (const echelon::Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 2;
}
