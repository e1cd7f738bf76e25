// Linked into test programs that run MPI under AddressSanitizer: Open MPI's components stay loaded
// until the leak check, so that it can name them and lsan.supp can recognise them.
extern "C" int dlclose(void*) { return 0; }
