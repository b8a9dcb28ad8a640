package lockcore.interop;

/** The action of a verb, on the thread of its request. */
@FunctionalInterface
interface Command {
    /** Returns the value of the reply, which its {@code toString} writes. */
    Object run(Arguments arguments) throws Exception;
}
