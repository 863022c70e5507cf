# Installs the build, configures an example against the installed package, builds it and runs it, on RANKS ranks.
# For each KEY=VALUE in ALIKE it runs once more, on two ranks and with that option: the final loss must equal that of the
# first run, to one unit in the last printed digit.
# cmake -DNAME=… -DRANKS=1 -DALIKE=… -DBUILD_DIR=… -DSOURCE_DIR=… -DTORCH_ROOT=… -DLAUNCHER=… -P example.cmake

set(work "${BUILD_DIR}/${NAME}_example")
file(REMOVE_RECURSE "${work}")
file(MAKE_DIRECTORY "${work}")
set(run "${work}/build/${NAME}")
set(launch "${CMAKE_COMMAND};-E;env;OMP_NUM_THREADS=1;${BUILD_DIR}/echelon;launch;--no-prefix;--quiet-others;--nproc")

foreach(step
        "${CMAKE_COMMAND};--install;${BUILD_DIR};--prefix;${work}/prefix;--component;Unspecified"
        "${CMAKE_COMMAND};-G;Ninja;-S;${SOURCE_DIR};-B;${work}/build;-DCMAKE_BUILD_TYPE=Release;-DCMAKE_PREFIX_PATH=${work}/prefix;-DTORCH_ROOT=${TORCH_ROOT};-DCMAKE_CXX_COMPILER_LAUNCHER=${LAUNCHER}"
        "${CMAKE_COMMAND};--build;${work}/build")
  execute_process(COMMAND ${step} COMMAND_ECHO STDOUT COMMAND_ERROR_IS_FATAL ANY WORKING_DIRECTORY "${work}")
endforeach()

# Runs it; returns the last loss that it prints, without the decimal point.
function(run_for_loss result)
  execute_process(COMMAND ${ARGN} COMMAND_ECHO STDOUT COMMAND_ERROR_IS_FATAL ANY WORKING_DIRECTORY "${work}"
                  OUTPUT_VARIABLE said ECHO_OUTPUT_VARIABLE)
  string(REGEX MATCHALL "loss [0-9]+\\.[0-9]+" losses "${said}")
  list(POP_BACK losses last)
  string(REGEX REPLACE "[^0-9]" "" digits "${last}")
  set(${result} "${digits}" PARENT_SCOPE)
endfunction()

if(RANKS GREATER 1)
  run_for_loss(loss ${launch} ${RANKS} -- ${run})
else()
  run_for_loss(loss ${run})
endif()
foreach(setting IN LISTS ALIKE)
  run_for_loss(other ${launch} 2 -- ${run} --set ${setting})
  math(EXPR difference "${other} - ${loss}")
  if(difference GREATER 1 OR difference LESS -1)
    message(FATAL_ERROR "with ${setting} the last loss differs by ${difference} in its last digit")
  endif()
endforeach()
