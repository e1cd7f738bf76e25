# The installed package: the command, the static libraries, the public headers as <lockstep/...> and
# the files of find_package(lockstep). The target `docs` reads the same headers.
include(CMakePackageConfigHelpers)
include(GNUInstallDirs)

# The public API: the headers that a program includes. Headers that these include are installed too.
set(LOCKSTEP_API
    lockstep.hpp base/errors.hpp base/philox.hpp
    collectives/communicator.hpp collectives/agreement.hpp
    data/source.hpp data/table.hpp data/plan.hpp
    distribute/tensor.hpp distribute/dataset.hpp distribute/sources.hpp distribute/strategy.hpp
    distribute/mesh.hpp distribute/dtensor.hpp distribute/operations.hpp
    launch/launch.hpp
    nn/network_shape.hpp nn/layer.hpp nn/custom_layer.hpp nn/loss.hpp nn/network.hpp
    train/replica.hpp train/checkpoint.hpp train/plot.hpp train/saved_variables.hpp)

set(LOCKSTEP_PUBLIC_HEADERS ${PROJECT_BINARY_DIR}/public)  # as they are installed
configure_file(${CMAKE_CURRENT_LIST_DIR}/PublicHeaders.cmake.in
               ${PROJECT_BINARY_DIR}/PublicHeaders.cmake @ONLY)
install(SCRIPT ${PROJECT_BINARY_DIR}/PublicHeaders.cmake)
install(DIRECTORY ${LOCKSTEP_PUBLIC_HEADERS}/lockstep DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})

install(TARGETS lockstep RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE ${PROJECT_SOURCE_DIR}/README.md DESTINATION ${CMAKE_INSTALL_DOCDIR})
# Documents have the paths of the tree, by which they name each other.
foreach(folder IN ITEMS apps/examples apps/guides configs)
  cmake_path(GET folder PARENT_PATH parent)
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/${folder} DESTINATION ${CMAKE_INSTALL_DOCDIR}/${parent})
endforeach()
foreach(folder IN ITEMS apps collectives data lib lib/base lib/distribute lib/launch lib/nn lib/numerics lib/optim
                       lib/train)
  install(FILES ${PROJECT_SOURCE_DIR}/${folder}/README.md DESTINATION ${CMAKE_INSTALL_DOCDIR}/${folder})
endforeach()
install(FILES ${PROJECT_SOURCE_DIR}/scripts/bench/step.svg DESTINATION ${CMAKE_INSTALL_DOCDIR}/scripts/bench)
set(completion ${PROJECT_BINARY_DIR}/apps/completion)
install(FILES ${completion}.bash DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions RENAME lockstep)
install(FILES ${completion}.zsh DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions RENAME _lockstep)
install(FILES ${completion}.fish DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d RENAME lockstep.fish)

# lockstep::lockstep: all libraries. Its target has another name here, since the command is lockstep.
add_library(lockstep_whole INTERFACE)
get_property(parts GLOBAL PROPERTY LOCKSTEP_PARTS)
list(TRANSFORM parts PREPEND lockstep_ OUTPUT_VARIABLE libraries)
target_link_libraries(lockstep_whole INTERFACE ${libraries})
set_target_properties(lockstep_whole PROPERTIES EXPORT_NAME lockstep)

set(package ${CMAKE_INSTALL_LIBDIR}/cmake/lockstep)
install(TARGETS lockstep_whole ${libraries} EXPORT lockstepTargets
        ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(EXPORT lockstepTargets NAMESPACE lockstep:: DESTINATION ${package})
list(JOIN parts ", lockstep::" LOCKSTEP_PARTS_TEXT)
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/lockstepConfig.cmake.in
                              ${PROJECT_BINARY_DIR}/package/lockstepConfig.cmake
                              INSTALL_DESTINATION ${package}
                              NO_SET_AND_CHECK_MACRO NO_CHECK_REQUIRED_COMPONENTS_MACRO)
# Until 1.0 each minor version may break compatibility.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/package/lockstepConfigVersion.cmake
                                 COMPATIBILITY SameMinorVersion)
configure_file(${CMAKE_CURRENT_LIST_DIR}/Dependencies.cmake
               ${PROJECT_BINARY_DIR}/package/lockstepDependencies.cmake COPYONLY)
install(DIRECTORY ${PROJECT_BINARY_DIR}/package/ DESTINATION ${package})
