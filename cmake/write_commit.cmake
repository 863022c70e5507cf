# cmake -DSOURCE_DIR=… -DOUTPUT=… -P write_commit.cmake: writes the commit's name, if it has changed.
execute_process(COMMAND git -C "${SOURCE_DIR}" rev-parse --short HEAD
                OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
if(failed)
  set(commit "unknown")
endif()
file(CONFIGURE OUTPUT "${OUTPUT}" @ONLY CONTENT [[
#include "echelon/base/build_config.h"

const char* const echelon::build_commit = "@commit@";
]])
