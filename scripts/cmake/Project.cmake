# The compiler flags of all targets, by lockstep_library, lockstep_test and lockstep_mpi_test.

find_program(CCACHE ccache)
if(CCACHE)  # independent of the build folder: what dev and cuda have in common is compiled once
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${PROJECT_SOURCE_DIR}
                                  CCACHE_NOHASHDIR=true ${CCACHE})
endif()

# The include root, the same in the build as in the installed package: "lockstep/nn/layer.hpp" is
# lib/nn/layer.hpp, and "lockstep/data/plan.hpp" is data/plan.hpp.
set(LOCKSTEP_INCLUDE ${PROJECT_BINARY_DIR}/include)
file(MAKE_DIRECTORY ${LOCKSTEP_INCLUDE}/lockstep)
file(GLOB parts CONFIGURE_DEPENDS LIST_DIRECTORIES true ${PROJECT_SOURCE_DIR}/lib/*)
list(FILTER parts EXCLUDE REGEX "/[^/]*\\.(txt|md|in)$")
foreach(part IN LISTS parts ITEMS ${PROJECT_SOURCE_DIR}/collectives ${PROJECT_SOURCE_DIR}/data)
  cmake_path(GET part FILENAME name)
  file(CREATE_LINK ${part} ${LOCKSTEP_INCLUDE}/lockstep/${name} SYMBOLIC)
endforeach()

# A plain `cmake -B FOLDER` builds what users run.
if(PROJECT_IS_TOP_LEVEL AND NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES AND NOT CMAKE_CXX_FLAGS)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Debug, Release, RelWithDebInfo, MinSizeRel or None" FORCE)
endif()

# C++20, warnings, include root, sanitizers; and no contraction: a * b + c is rounded twice
# wherever the source does not say fma, so that every compiler gives the same bits. Who uses an
# installed copy gets that too: it holds for what our headers, and layers of one's own, compute.
function(lockstep_defaults target)
  target_compile_features(${target} PUBLIC cxx_std_20)
  set_target_properties(${target} PROPERTIES CXX_EXTENSIONS OFF)
  target_include_directories(${target} PUBLIC $<BUILD_INTERFACE:${LOCKSTEP_INCLUDE}>
                                              $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>)
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wpedantic;-Wconversion;-Wshadow>
                                   PUBLIC $<$<COMPILE_LANGUAGE:C,CXX>:-ffp-contract=off>)
  if(CMAKE_CXX_COMPILER_ID STREQUAL GNU AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
    target_compile_options(${target} PRIVATE -Wno-restrict)  # false alarms, GCC bug 105651
  endif()
  if(CMAKE_UNITY_BUILD)  # warnings about names of another file; dev has them, a file at a time
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Wno-shadow>
                                             $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-subobject-linkage>)
  endif()
  if(LOCKSTEP_WERROR)
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:C,CXX>:-Werror>
                                             $<$<COMPILE_LANGUAGE:CUDA>:-Werror=all-warnings>)
  endif()
  if(LOCKSTEP_SANITIZE)
    target_compile_options(${target} PRIVATE -fsanitize=${LOCKSTEP_SANITIZE}
                                             -fno-sanitize-recover=all -fno-omit-frame-pointer)
    if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)  # instrumented code makes GCC 12 warn of its own <regex>
      target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:C,CXX>:-Wno-maybe-uninitialized>)
    endif()
    target_link_options(${target} PUBLIC -fsanitize=${LOCKSTEP_SANITIZE})
  endif()
endfunction()

# lockstep_library(NAME SOURCES ... [LINK public...] [LINK_PRIVATE ...]): lockstep_data is installed
# as lockstep::data.
function(lockstep_library name)
  cmake_parse_arguments(A "" "" "SOURCES;LINK;LINK_PRIVATE" ${ARGN})
  add_library(${name} STATIC ${A_SOURCES})
  target_link_libraries(${name} PUBLIC ${A_LINK} PRIVATE ${A_LINK_PRIVATE})
  lockstep_defaults(${name})
  string(REGEX REPLACE "^lockstep_" "" part ${name})
  set_target_properties(${name} PROPERTIES EXPORT_NAME ${part})
  set_property(GLOBAL APPEND PROPERTY LOCKSTEP_PARTS ${part})
endfunction()

# Leaks and races inside Open MPI and the libraries below it are not ours; see tests/support.
set(LOCKSTEP_TEST_ENVIRONMENT
    OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    "LSAN_OPTIONS=suppressions='${PROJECT_SOURCE_DIR}/tests/support/lsan.supp':print_suppressions=0"
    "TSAN_OPTIONS=suppressions='${PROJECT_SOURCE_DIR}/tests/support/tsan.supp':ignore_noninstrumented_modules=1")

# lockstep_test(NAME SOURCES ... [LINK ...]): one Catch2 binary, one ctest entry.
function(lockstep_test name)
  cmake_parse_arguments(A "" "" "SOURCES;LINK" ${ARGN})
  add_executable(${name} ${A_SOURCES})
  # Last, so that templates of the libraries are those that are instrumented.
  target_link_libraries(${name} PRIVATE ${A_LINK} lockstep_catch)
  lockstep_defaults(${name})
  target_compile_options(${name} PRIVATE -O1)  # -O2 takes longer to compile than it saves
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES LABELS unit TIMEOUT 300 ENVIRONMENT
                       "${LOCKSTEP_TEST_ENVIRONMENT}")
endfunction()

# lockstep_mpi_test(NAME RANKS n... SOURCES ... [LINK ...]): one binary, one ctest entry a rank
# count, as all_reduce.np3. A rank that fails an assertion must not leave the others waiting, so
# mpirun has a limit of its own, below that of ctest.
function(lockstep_mpi_test name)
  cmake_parse_arguments(A "" "" "RANKS;SOURCES;LINK" ${ARGN})
  add_executable(${name} ${A_SOURCES})
  target_link_libraries(${name} PRIVATE ${A_LINK} lockstep_catch)
  lockstep_defaults(${name})
  target_compile_options(${name} PRIVATE -O1)
  foreach(n IN LISTS A_RANKS)
    add_test(NAME ${name}.np${n}
             COMMAND ${MPIEXEC_EXECUTABLE} --oversubscribe --timeout 120 ${MPIEXEC_NUMPROC_FLAG} ${n}
                     $<TARGET_FILE:${name}>)
    set_tests_properties(${name}.np${n} PROPERTIES LABELS mpi PROCESSORS 2 TIMEOUT 150 ENVIRONMENT
                         "${LOCKSTEP_TEST_ENVIRONMENT}")
  endforeach()
endfunction()
