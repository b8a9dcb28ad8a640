package lockcore.interop;

import java.util.List;

/** The arguments of a request, by position. */
record Arguments(List<String> fields) {
    String text(int position) {
        if (position >= fields.size()) {
            throw new IllegalArgumentException("argument " + position + " is missing");
        }
        return fields.get(position);
    }

    long number(int position) {
        return Long.parseLong(text(position));
    }
}
