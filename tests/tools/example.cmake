# Installs the build, configures an example against the installed package, builds it and runs it, on RANKS ranks.
# cmake -DNAME=… -DRANKS=1 -DBUILD_DIR=… -DSOURCE_DIR=… -DTORCH_ROOT=… -DLAUNCHER=… -P example.cmake

set(work "${BUILD_DIR}/${NAME}_example")
file(REMOVE_RECURSE "${work}")
file(MAKE_DIRECTORY "${work}")
set(run "${work}/build/${NAME}")
if(RANKS GREATER 1)
  set(run "${BUILD_DIR}/echelon;launch;--nproc;${RANKS};--;${run}")
endif()

foreach(step
        "${CMAKE_COMMAND};--install;${BUILD_DIR};--prefix;${work}/prefix"
        "${CMAKE_COMMAND};-G;Ninja;-S;${SOURCE_DIR};-B;${work}/build;-DCMAKE_BUILD_TYPE=Release;-DCMAKE_PREFIX_PATH=${work}/prefix;-DTORCH_ROOT=${TORCH_ROOT};-DCMAKE_CXX_COMPILER_LAUNCHER=${LAUNCHER}"
        "${CMAKE_COMMAND};--build;${work}/build"
        "${run}")
  execute_process(COMMAND ${step} COMMAND_ECHO STDOUT COMMAND_ERROR_IS_FATAL ANY WORKING_DIRECTORY "${work}")
endforeach()
