# Installs the build, configures the example against the installed package, builds it and runs it.
# cmake -DBUILD_DIR=… -DSOURCE_DIR=… -DTORCH_ROOT=… -DLAUNCHER=… -P embed_example.cmake

set(work "${BUILD_DIR}/embed_example")
file(REMOVE_RECURSE "${work}")
file(MAKE_DIRECTORY "${work}")

foreach(step
        "${CMAKE_COMMAND};--install;${BUILD_DIR};--prefix;${work}/prefix"
        "${CMAKE_COMMAND};-G;Ninja;-S;${SOURCE_DIR};-B;${work}/build;-DCMAKE_BUILD_TYPE=Release;-DCMAKE_PREFIX_PATH=${work}/prefix;-DTORCH_ROOT=${TORCH_ROOT};-DCMAKE_CXX_COMPILER_LAUNCHER=${LAUNCHER}"
        "${CMAKE_COMMAND};--build;${work}/build"
        "${work}/build/embed")
  execute_process(COMMAND ${step} COMMAND_ECHO STDOUT COMMAND_ERROR_IS_FATAL ANY WORKING_DIRECTORY "${work}")
endforeach()
