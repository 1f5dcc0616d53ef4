/* A driver library with one device that can't be used, as a stand-in for nvcuda.dll. */
#include <windows.h>

__declspec(dllexport) int cuInit(unsigned flags)
{
    return 0;
}

__declspec(dllexport) int cuDeviceGetCount(int *count)
{
    *count = 1;
    return 0;
}

__declspec(dllexport) int cuDriverGetVersion(int *version)
{
    *version = 13000;
    return 0;
}
